"""The levels of `rotated`, and its bound.

LEVELS[b]: the positive half of the 2ᵇ levels with the least mean squared error for N(0, 1) (Lloyd–Max). They are part
of the format: both ends must hold the same float32 numbers.

OMEGA[b]: E‖Q(x) − x‖² ≤ ω‖x‖² for every x. Given x, a rotated coordinate in units of σ is a sum of random signs times
fixed numbers with variance one, so its even moments are at most a Gaussian's (Khintchine): E z² = 1, E z⁴ ≤ 3,
E z⁶ ≤ 15, … With θ the angle between y = Rx and q(y/σ), the error is tan²θ‖x‖².

    1. Any polynomial c₀ + c₂z² + c₄z⁴ + … ≥ (|z| − q(z))² with c₄, c₆, … ≥ 0 gives E sin²θ ≤ c₀ + c₂ + 3c₄ + 15c₆ + …;
       the best one is a linear program. Call it B.
    2. sin²θ ≤ s < 1 for every y of up to 512 coordinates, from ‖y − αq‖² ≤ s‖y‖² with the best α.
    3. tan²θ ≤ sin²θ / (1 − s), hence ω = B / (1 − s).

A test solves both again. On actual data the error is far smaller: D/(1−D), D being the Lloyd–Max distortion.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from qafel.params import Vector


def _levels(text: str) -> Vector:
    levels = np.array(text.split(), np.float32)
    levels.flags.writeable = False
    return levels


LEVELS: Final[dict[int, Vector]] = {
    1: _levels("0.797884583"),
    2: _levels("0.452780038 1.51041758"),
    3: _levels("0.24509418 0.756005287 1.34390926 2.15194559"),
    4: _levels("0.128395036 0.388048291 0.656759143 0.942340434 1.25623119 1.6180464 2.06901717 2.73258948"),
    5: _levels(
        "0.0658896565 0.198051825 0.331378311 0.466699511 0.604933619 0.747135699 0.894565105 1.0487833 "
        "1.21180439 1.38634038 1.57622802 1.78723323 2.02872849 2.31773949 2.69111967 3.26073241"
    ),
    6: _levels(
        "0.0334095061 0.100278288 0.167296901 0.234566987 0.302192837 0.37028265 0.438949674 0.508313775 "
        "0.578503013 0.649655581 0.721921921 0.795467675 0.870476604 0.947154939 1.02573633 1.10648823 "
        "1.18972015 1.27579451 1.36514103 1.45827639 1.55583119 1.65858889 1.76754189 1.88397729 "
        "2.00961113 2.14681029 2.29898119 2.47130489 2.67227387 2.9174068 3.24043703 3.74410129"
    ),
}

OMEGA: Final[dict[int, float]] = {1: 367.0, 2: 14.4, 3: 0.75, 4: 0.1125, 5: 0.024, 6: 0.0055}
