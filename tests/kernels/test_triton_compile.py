"""Ahead of time for GPUs that are not here: nothing spills, and shared memory is enough.

A part of the sweep, which has every option of every kernel in every type; ``make test-triton-compile`` compiles all of
it and prints the table.
"""

import importlib.util
import re
from pathlib import Path

import pytest

import interpreted

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(interpreted.ON, reason="the interpreter compiles nothing"),
]


PARTS = 4  # that two processes end at about the same time


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_every_kernel_compiles_without_spills(arch, part):
    from parsimax.kernels.triton import ahead

    own = ahead.selection(arch)[part::PARTS]
    wrong = {(job.name, job.case): ahead.compiled(job, arch).wrong(arch) for job in own}
    assert not {case: why for case, why in wrong.items() if why}


def test_what_is_compiled():
    """All that is most used, and what compiles quickly, at least once; what the README says of it."""
    from parsimax.kernels.triton import ahead

    every, swept = ahead.jobs(), ahead.sweep()
    chosen = {arch: ahead.selection(arch) for arch in ahead.TARGETS}
    assert {job.name for job in chosen["sm_90"]} == {job.name for job in every}
    assert [job for job in chosen["sm_90"] if job.common] == [job for job in swept if job.common]
    everywhere = [job for own in chosen.values() for job in own]
    assert [job.case for job in swept if job.quick and job not in everywhere] == []
    number = len(everywhere)
    of, in_all = (sum(job.fits(arch) for job in jobs for arch in ahead.TARGETS) for jobs in (swept, every))
    readme = Path(ahead.__file__).with_name("README.md").read_text()
    assert f"{number} of {of}" in readme and f"{in_all} in all" in readme
    distinct = len([job for job in swept if job in everywhere])
    assert distinct > len(swept) / 3 and f"{distinct} of {len(swept)}" in readme


def test_the_sweep_leaves_out_no_option():
    from parsimax.kernels.triton import ahead

    def found(jobs):
        return {(job.name, job.case.partition(",")[0], option) for job in jobs for option in ahead.options(job)}

    every, swept = ahead.jobs(), ahead.sweep()
    assert found(swept) == found(every) and len(swept) < len(every) / 4
    assert [job.case + job.name for job in every if job.common and job not in swept] == []


def test_every_way_to_attend_is_compiled():
    """Groups of heads, heads that are no power of 2, inference, dropout with and without a causal mask."""
    from parsimax.kernels.triton import ahead

    found = [job for job in ahead.jobs() if job.name == "attention.forward"]
    for type_ in ahead.POINTERS:
        own = [job for job in found if job.case.startswith(type_)]
        assert any(job.constants["GROUP"] > 1 for job in own)
        assert any(job.constants["D"] != job.constants["DIM"] for job in own)
        assert {job.constants["KEEP"] for job in own} == {True, False}
        assert {job.constants["CAUSAL"] for job in own if "Drop" in job.pointers} == {True, False}
    common = [job for job in found if job.common]
    assert any(job.constants["GROUP"] > 1 for job in common) and any(not job.constants["KEEP"] for job in common)


def test_no_program_has_more_threads_than_a_gpu_takes():
    from parsimax.kernels.triton import launch

    for lanes in (32, 64):
        for kind in launch.SCORES:
            for n in (1, 64, 1000, 8000, 16384, 16385, 32768, 32769, 10**6):
                table = launch.rows(n, kind, lanes)
                assert 1 <= table.warps * lanes <= 1024 or (n < 64 and table.warps == 1), (n, kind, table)
                assert not table.one or launch.longest(kind) >= table.B


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_several_programs_hold_a_row_and_reduce_over_all_of_them(arch):
    """Each loads a score once, and what it has found of the row is read by the others of its cluster."""
    from parsimax.kernels.triton import ahead

    jobs = [job for job in ahead.jobs() if job.case == "float32, n = 65536, α = 1.5" and job.name == "entmax.forward"]
    (job,) = jobs
    assert job.cluster == 8 and job.constants["B"] == 65536 and not job.fits("sm_80") and not job.fits("gfx942")
    text = ahead.assembly(job, arch)
    assert ".reqnctapercluster 8" in text and "ld.shared::cluster" in text
    scores = job.constants["B"] // (job.cluster * job.warps * 32)
    loads = re.findall(r"ld\.global(\.v(\d))?\.b32", text)
    assert sum(int(many or 1) for _, many in loads) == scores


def test_a_kernel_that_spills_is_found():
    from parsimax.kernels.triton import ahead

    assert "spills 5000 bytes" in str(ahead.Usage(255, 5000, 0).wrong("sm_90"))
    assert "shared memory" in str(ahead.Usage(64, 0, 100 * 1024).wrong("gfx942"))
    assert ahead.Usage(64, 0, 100 * 1024).wrong("sm_90") is None


def test_the_table_of_registers_says_what_is_wrong():
    from parsimax.kernels.triton import ahead

    assert ahead.cell(ahead.Usage(64, 0, 128), "sm_90") == "64"
    assert ahead.cell(ahead.Usage(64, 8, 3 * 1024), "sm_90") == "64, spills 8 B, 3 KB"
    assert ahead.cell(ahead.Usage(255, 5000, 0), "sm_90") == "**255, spills 5000 B**"
