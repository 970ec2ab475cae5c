"""What a run is, for both drivers: a configuration, a seed and a driver make rows and, at the end, a summary.

progress    what crossed, when the model is measured, what a row holds, when the run ends
records     what the files of a run may hold, and the one way to read them
summary     a run in a page of JSON
live        how a run stands between two rows
listeners   who hears of rows and of the end
trackers    TensorBoard, MLflow, Weights & Biases: listeners that show runs elsewhere
bars        a listener that shows a run while it goes on, on a terminal or in a notebook
directory   where a run writes; how far a directory is; checkpoint files
reading     run directories read back
seeds       runs that differ only by seed: spread and mean curve
"""
