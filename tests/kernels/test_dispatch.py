"""Who chooses the kernels: a block for its own thread and task, a function for the process."""

import asyncio
import contextvars
import copy
import gc
import threading
import warnings

import pytest
import torch

import parsimax
from parsimax.kernels import dispatch

SCORES = torch.tensor([1.0, 0.5, -1.0])


@pytest.fixture(autouse=True)
def kernels():
    """Nothing chosen around the test (in place of the fixture of conftest), and nothing left behind by it."""
    assert dispatch.blocks.get() is None and dispatch._traced.inner is None
    before = dispatch.process.default
    yield
    assert dispatch.blocks.get() is None and dispatch._traced.inner is None
    assert dispatch.process.default == before


def in_thread(function):
    """What ``function`` gives in a thread of its own."""
    out = []
    thread = threading.Thread(target=lambda: out.append(function()))
    thread.start()
    thread.join()
    return out[0]


def runs():
    """What runs, by what it says and by what it does: the two paths leave different graphs."""
    said = parsimax.explain("entmax15", SCORES).partition(" (")[0].partition("\n")[0].removeprefix("entmax15: ")
    node, done = parsimax.entmax15(SCORES.clone().requires_grad_()).grad_fn, set()
    while node is not None:
        done.add(type(node).__name__)
        node = node.next_functions[0][0] if node.next_functions else None
    assert (said == "cpu") == bool({"_RowsBackward", "_FixedRowsBackward"} & done), (said, done)
    return said


def test_a_thread_does_not_see_the_choice_of_another():
    with parsimax.use_kernels("torch"):
        assert (runs(), in_thread(runs)) == ("torch", "cpu")
    assert runs() == "cpu"


def test_threads_that_leave_in_another_order_leave_nothing_behind():
    """The first to enter is the first to leave; a shared stack of old values would end on "torch"."""
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    seen = {}

    def first():
        with parsimax.use_kernels("torch"):
            first_is_in.set()
            assert second_is_in.wait(30)
            seen["first"] = runs()
        first_is_out.set()

    def second():
        assert first_is_in.wait(30)
        with parsimax.use_kernels("cpu"):
            second_is_in.set()
            assert first_is_out.wait(30)
            seen["second"] = runs()
        seen["second, outside"] = runs()

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"first": "torch", "second": "cpu", "second, outside": "cpu"}
    assert runs() == "cpu"


def test_tasks_that_leave_in_another_order_leave_nothing_behind():
    async def main():
        first_is_in, second_is_in, first_is_out = (asyncio.Event() for _ in range(3))
        seen = {}

        async def first():
            with parsimax.use_kernels("torch"):
                first_is_in.set()
                await second_is_in.wait()
                seen["first"] = runs()
            first_is_out.set()

        async def second():
            await first_is_in.wait()
            with parsimax.use_kernels("cpu"):
                second_is_in.set()
                await first_is_out.wait()
                seen["second"] = runs()

        await asyncio.gather(first(), second())
        return seen, runs(), dispatch._traced.inner

    assert asyncio.run(main()) == ({"first": "torch", "second": "cpu"}, "cpu", None)


def test_a_task_has_the_choice_of_its_maker():
    async def main():
        with parsimax.use_kernels("torch"):
            task = asyncio.create_task(asyncio.to_thread(runs))
        return runs(), await task

    assert asyncio.run(main()) == ("cpu", "torch")


def test_a_context_takes_the_choice_into_a_thread():
    with parsimax.use_kernels("torch"):
        context = contextvars.copy_context()
    assert in_thread(lambda: context.run(runs)) == "torch"


def test_blocks_nest_repeat_and_let_errors_through():
    block = parsimax.use_kernels("torch")
    with block:
        with parsimax.use_kernels("cpu"), block:
            assert runs() == "torch"
        with pytest.raises(ZeroDivisionError), parsimax.use_kernels("auto"):
            assert runs() == "cpu"
            raise ZeroDivisionError
        assert runs() == "torch"
    with copy.copy(block):
        assert runs() == "torch"
    assert runs() == "cpu"


def test_it_decorates_functions_and_coroutines_but_no_generators():
    @parsimax.use_kernels("torch")
    def plain():
        return runs()

    @parsimax.use_kernels("torch")
    async def later():
        await asyncio.sleep(0)
        return runs()

    assert (plain(), asyncio.run(later()), runs()) == ("torch", "torch", "cpu")
    with pytest.raises(TypeError, match="cannot decorate the generator each; write `with` inside"):

        @parsimax.use_kernels("torch")
        def each():
            yield runs()


def test_a_call_without_a_block_chooses_nothing_and_says_so():
    with pytest.warns(UserWarning, match=r"chose nothing.*set_kernels\('torch'\)"):
        parsimax.use_kernels("torch")
        gc.collect()
    assert runs() == "cpu"
    with warnings.catch_warnings(), pytest.raises(ValueError, match="one of auto, cpu, triton, torch, lean, got 'gpu'"):
        warnings.simplefilter("error")
        parsimax.use_kernels("gpu")


def test_the_process_has_a_default_for_all_threads():
    try:
        parsimax.set_kernels("torch")
        assert (runs(), in_thread(runs)) == ("torch", "torch")
        with parsimax.use_kernels("auto"):
            assert (runs(), in_thread(runs)) == ("cpu", "torch")
    finally:
        parsimax.set_kernels("auto")
    assert (runs(), in_thread(runs)) == ("cpu", "cpu")
    with pytest.raises(ValueError, match="set_kernels: choose one of auto, cpu, triton, torch, lean, got 'fast'"):
        parsimax.set_kernels("fast")


def spy(ran):
    """A back end of torch.compile that notes, at each run of a graph, how many kernels of entmax it holds."""

    def compile(graph, _):
        kernels = sum(str(node.target) == "parsimax.entmax" for node in graph.graph.nodes)

        def run(*args):
            ran.append(kernels)
            return graph(*args)

        return run

    torch._dynamo.reset()
    return compile


def test_compiled_code_follows_the_choice():
    """Called again and again, from two threads: torch.compile skips guards that it believes to be safe."""
    ran = []
    f = torch.compile(lambda x: parsimax.entmax15(x) * 2, backend=spy(ran), fullgraph=True)

    def now():
        f(SCORES)
        return ran.pop()

    for _ in range(3):
        for _ in range(10):
            assert now() == 1
        with parsimax.use_kernels("torch"):
            for _ in range(10):
                assert (now(), in_thread(now)) == (0, 1)
    try:
        parsimax.set_kernels("torch")
        assert now() == 0
    finally:
        parsimax.set_kernels("auto")


def test_a_block_inside_compiled_code():
    ran = []

    @torch.compile(backend=spy(ran), fullgraph=True)
    def f(x):
        with parsimax.use_kernels("torch"):
            first = parsimax.entmax15(x)
        return first, parsimax.entmax15(x)

    for _ in range(3):
        first, second = f(SCORES)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    assert ran == [1, 1, 1]
