"""What every lab stands on: trajectories, solvers, experiments, errors."""
