"""TensorBoard's table of hyperparameters: a row for each split, with what it gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpubalance.render.scalars import PREFIX, Summary

# The tag and title of each figure shown beside a split's hyperparameters.
_METRICS = {
    f"{PREFIX}/median/samples_per_s": "samples/s",
    f"{PREFIX}/median/step_time_s": "step time, s",
    f"{PREFIX}/sync_s": "sync, s",
    f"{PREFIX}/imbalance": "imbalance",
}
_TYPES = {int: "FLOAT64", float: "FLOAT64", str: "STRING", bool: "BOOL"}

HParams = Mapping[str, str | float | bool]


def row_begun(run: str, began_s: float, hparams: HParams, group: str) -> Summary:
    """The row of a split that is tried."""
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    row = hparams_pb(hparams, trial_id=f"{group}/{run}", start_time_secs=began_s)
    return run, began_s, 0, row


def row_ended(run: str, ended_s: float, *, fits: bool) -> Summary:
    """The end of a split, which fails if it ran out of memory."""
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    status = api_pb2.STATUS_SUCCESS if fits else api_pb2.STATUS_FAILURE
    ended = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=ended_s)
    summary = _with_metadata(metadata.SESSION_END_INFO_TAG, session_end_info=ended)
    return run, ended_s, 0, summary


def columns(began_s: float, hparams: HParams) -> Summary:
    """The table's columns and figures, which TensorBoard takes from one command for a folder."""
    from tensorboard.plugins.hparams import api_pb2, metadata

    table = api_pb2.Experiment(time_created_secs=began_s)
    for name, value in hparams.items():
        # TensorBoard first shows columns that differ: those of the split, not the settings that
        # all have.
        differs = name.startswith("batch")
        data_type = f"DATA_TYPE_{_TYPES[type(value)]}"
        table.hparam_infos.append(
            api_pb2.HParamInfo(name=name, type=data_type, differs=differs)
        )
    for tag, title in _METRICS.items():
        name = api_pb2.MetricName(tag=tag)
        table.metric_infos.append(api_pb2.MetricInfo(name=name, display_name=title))
    return "", began_s, 0, _with_metadata(metadata.EXPERIMENT_TAG, experiment=table)


def _with_metadata(tag: str, **data: Any) -> Any:
    """The hparams plugin's data, which is in the metadata of an empty tensor."""
    from tensorboard.compat.proto.summary_pb2 import Summary as SummaryPb
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    plugin_data = plugin_data_pb2.HParamsPluginData(**data)
    content = metadata.create_summary_metadata(plugin_data)
    value = SummaryPb.Value(tag=tag, metadata=content, tensor=metadata.NULL_TENSOR)
    return SummaryPb(value=[value])
