"""What the machine gives: devices, threads, progress bars, files, lazy imports."""
