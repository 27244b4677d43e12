"""The block table: what a GPU measured, read as it was written, and nothing claimed where nothing was."""

import json

import pytest

from engine.core.errors import ConfigError
from sim.block_table import load_block_table


def test_the_built_in_table_says_that_nothing_was_measured():
    table = load_block_table()
    assert "not measured" in table.source
    assert [table.at(size) for size in (1, 8, 16, 512)] == [1, 1, 1, 1]


def test_figures_of_the_kernel_benchmark_are_relative_to_the_best_size(tmp_path):
    path = tmp_path / "gpu_kernels.json"
    figures = {"decode_block_8_us": 200.0, "decode_block_32_us": 100.0, "decode_block_64_us": 125.0}
    path.write_text(json.dumps(figures | {"prefill_vs_torch_ratio": 1.1}))
    table = load_block_table(path)
    assert table.source == "gpu_kernels.json"
    assert [table.at(size) for size in (8, 32, 64)] == [0.5, 1.0, 0.8]
    assert table.at(16) == pytest.approx(0.75)
    assert (table.at(1), table.at(1024)) == (0.5, 0.8)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"decode_block_16_us": 0}', None])
def test_a_file_without_such_figures_is_refused_with_the_way_to_make_one(tmp_path, text):
    path = tmp_path / "figures.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"block table .*figures\.json"):
        load_block_table(path)
