"""QAFeL with 4 bits in both directions on the paper's first problem."""

import qafel

task = qafel.Mushrooms(clients=100)
algorithm = qafel.method("qafel", buffer_size=10, client_lr=2.0, server_lr=0.1)  # default quantizer: trellis:4
result = qafel.simulate(task, algorithm, server_steps=1000)
print(f"f(x) − f* = {result.summary['metric_final']:.4f} after {result.summary['uploads']:,} uploads")
print(
    f"{result.summary['upload_bytes_mean']:.0f} bytes per upload; unquantized they would be {64 + 4 * task.layout.size}"
)
print(f"best so far: {result.history['metric'].min():.4f}, in {len(result.history.rows):,} evaluations")
