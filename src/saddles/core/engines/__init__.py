"""Where tasks are computed: worker processes here, or a Dask cluster."""
