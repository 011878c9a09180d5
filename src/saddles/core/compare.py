"""Put a number on how far a prediction is from a measurement."""

import numpy as np
import xarray as xr

from saddles.core.trajectory import instead
from saddles.errors import SaddlesError

KINDS = ("max_absolute", "max_relative", "rms", "final")


def compare(measured: xr.Dataset | xr.DataTree, predicted: xr.Dataset | xr.DataTree) -> xr.Dataset:
    """Align two trajectories on their clock and measure every variable they share.

    Where both have `step`, steps are matched; otherwise times. Common instants are used
    as they are; if fewer than two coincide, the prediction is interpolated linearly onto
    the measured times inside their overlap (attribute `alignment` says which). Along other axes,
    equal labels (seeds, settings) are matched; runs without a label in common are taken in their order.

    Returns:
        `error` (variable, kind) with kinds
        max_absolute: max |m − p|;
        max_relative: max over time of ‖m − p‖ / max over time of ‖m‖, norms over the other axes;
        rms: root mean square of m − p;
        final: ‖m − p‖ / ‖m‖ at the last common instant.
    """
    for name, data in (("measured", measured), ("predicted", predicted)):
        if isinstance(data, xr.DataTree):
            groups = ", ".join(data.children)
            raise SaddlesError.must_be(
                name, "one table over time", f"a tree of {groups}",
                "Compare a group of each in Python, as tree['heads'].to_dataset()",
            )  # fmt: skip
        if not isinstance(data, xr.Dataset):
            raise SaddlesError.must_be(name, "an xarray.Dataset", data, instead(data))
    assert isinstance(measured, xr.Dataset)
    assert isinstance(predicted, xr.Dataset)
    shared = [
        name
        for name in measured.data_vars
        if name in predicted.data_vars
        and "time" in measured[name].dims
        and set(measured[name].dims) == set(predicted[name].dims)
        and np.issubdtype(measured[name].dtype, np.number)
    ]
    if not shared:
        _refuse_other_axes(measured, predicted)
        ours, theirs = (", ".join(sorted(map(str, data.data_vars))) for data in (measured, predicted))
        raise SaddlesError(
            f"The two trajectories must share a variable over time; they have {ours} and {theirs}. "
            "Give both the same `keep`."
        )
    clock = "step" if "step" in measured.coords and "step" in predicted.coords else "time"
    left, right, how = _align(measured[shared], _matched(measured[shared], predicted[shared]), clock)
    rows = [_errors(left[name], right[name]) for name in shared]
    return xr.Dataset(
        {"error": (("variable", "kind"), np.array(rows))},
        coords={"variable": [str(name) for name in shared], "kind": list(KINDS)},
        attrs={
            "alignment": how,
            "clock": clock,
            "instants": left.sizes["time"],
            "from": float(left[clock][0]),
            "to": float(left[clock][-1]),
        },
    )


def _refuse_other_axes(measured: xr.Dataset, predicted: xr.Dataset) -> None:
    """Name a variable that both have, over other axes."""
    for name in measured.data_vars:
        if name in predicted.data_vars and "time" in measured[name].dims and "time" in predicted[name].dims:
            ours, theirs = (", ".join(map(str, data[name].dims)) for data in (measured, predicted))
            raise SaddlesError(
                f"{name} has the axes {ours} in one and {theirs} in the other. Choose one value of the further axis, "
                "as with .sel(seed=0), or give both the same lists."
            )


def _matched(measured: xr.Dataset, predicted: xr.Dataset) -> xr.Dataset:
    """The prediction in the order of the measurement's labels; without common labels, in its own."""
    for axis in [axis for axis in predicted.dims if axis in predicted.indexes and axis in measured.indexes]:
        if axis == "time":
            continue
        ours, theirs = measured[axis].values, predicted[axis].values
        if ours.shape != theirs.shape or _same_labels(ours, theirs) or not np.isin(ours, theirs).any():
            continue
        if not np.isin(ours, theirs).all() or len(np.unique(theirs)) < len(theirs):
            sides = [", ".join(map(str, labels)) for labels in (ours, theirs)]
            raise SaddlesError(
                f"`{axis}` is {sides[0]} in one and {sides[1]} in the other. Compare the same ones, as with .sel."
            )
        predicted = predicted.sel({axis: ours})
    return predicted


def _same_labels(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Labels that differ by rounding are the same: a width or a variance may have been computed in two ways."""
    numbers = all(np.issubdtype(labels.dtype, np.number) for labels in (ours, theirs))
    return bool(np.allclose(ours, theirs, rtol=1e-9, atol=0)) if numbers else bool((ours == theirs).all())


def _align(measured: xr.Dataset, predicted: xr.Dataset, clock: str) -> tuple[xr.Dataset, xr.Dataset, str]:
    ours, theirs = measured[clock].values, predicted[clock].values
    for name, instants in (("measured", ours), ("predicted", theirs)):
        if not len(instants) or not (np.diff(instants) > 0).all():  # NaN is no instant either
            raise SaddlesError.must_be(f"{clock} of {name}", "one or more increasing numbers", instants.tolist())
    nearest = np.clip(np.searchsorted(theirs, ours), 0, len(theirs) - 1)
    before = np.clip(nearest - 1, 0, None)
    nearest = np.where(np.abs(theirs[before] - ours) < np.abs(theirs[nearest] - ours), before, nearest)
    scale = max(float(np.abs(ours).max()), 1e-300)
    same = np.abs(theirs[nearest] - ours) <= 1e-12 * scale
    if same.sum() >= 2 or (same.any() and len(ours) == 1):
        return measured.isel(time=same), predicted.isel(time=nearest[same]), "common instants"
    inside = (measured["time"] >= float(predicted["time"][0])) & (measured["time"] <= float(predicted["time"][-1]))
    if int(inside.sum()) < 1 or predicted.sizes["time"] < 2:
        raise SaddlesError(
            f"The two clocks must overlap; they run from {ours[0]:.4g} to {ours[-1]:.4g} and from {theirs[0]:.4g} to "
            f"{theirs[-1]:.4g}. Pass the same `times` to both."
        )
    left = measured.isel(time=np.flatnonzero(inside.values))
    plain = predicted.drop_vars([name for name in predicted.coords if name not in predicted.dims])
    return left, plain.interp(time=left["time"].values), "linear interpolation"


def _errors(measured: xr.DataArray, predicted: xr.DataArray) -> list[float]:
    ours = measured.transpose("time", ...)
    theirs = predicted.transpose(*ours.dims)
    if ours.shape != theirs.shape:
        raise SaddlesError(
            f"Shapes of {measured.name} must agree; got {ours.shape} and {theirs.shape}. Compare runs of the same task."
        )
    m = ours.values.reshape(ours.sizes["time"], -1).astype(float)
    with np.errstate(over="ignore", invalid="ignore"):
        gap = m - theirs.values.reshape(m.shape)
    with np.errstate(over="ignore", invalid="ignore"):  # of numbers near the largest, squares are infinite
        norms, gaps = np.linalg.norm(m, axis=1), np.linalg.norm(gap, axis=1)
        scale = norms.max() if norms.max() > 0 else 1.0
        last = norms[-1] if norms[-1] > 0 else 1.0
        return [
            float(np.abs(gap).max()),
            float(gaps.max() / scale),
            float(np.sqrt((gap**2).mean())),
            float(gaps[-1] / last),
        ]
