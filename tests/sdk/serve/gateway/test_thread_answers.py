"""Answers of threads in a loop: each comes, and those that come together wake the loop once."""

import asyncio
import threading
from concurrent.futures import Future
from random import Random

import pytest
from tests.timeouts import TIMEOUT_S

from potluck.errors import RequestFailed
from potluck.serve.gateway.thread_answers import ThreadAnswers


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often other threads wake it."""

    n_woken = 0

    def call_soon_threadsafe(self, *args, **how):
        self.n_woken += 1
        return super().call_soon_threadsafe(*args, **how)


def run(main):
    loop = CountingLoop()
    try:
        return loop.run_until_complete(asyncio.wait_for(main, TIMEOUT_S)), loop.n_woken
    finally:
        loop.close()


def test_answers_that_come_together_wake_the_loop_once():
    futures = [Future() for _ in range(5)]

    async def main():
        answers = ThreadAnswers()
        waiting = [asyncio.ensure_future(answers.result(each)) for each in futures]
        await asyncio.sleep(0)
        for number, each in enumerate(futures):  # the loop has no turn meanwhile
            each.set_result(number)
        return await asyncio.gather(*waiting)

    assert run(main()) == ([0, 1, 2, 3, 4], 1)


@pytest.mark.parametrize("seed", range(4))
def test_every_answer_of_many_threads_comes(seed):
    rng = Random(seed)
    futures = [Future() for _ in range(400)]

    def give(mine):
        for each in mine:
            each.set_result(id(each))

    async def main():
        answers = ThreadAnswers()
        threads = [threading.Thread(target=give, args=(futures[n::4],)) for n in range(4)]
        rng.shuffle(futures)
        for thread in threads:
            thread.start()
        found = await asyncio.gather(*map(answers.result, futures))
        for thread in threads:
            thread.join()
        return found

    assert run(main())[0] == [id(each) for each in futures]


def test_errors_come_and_who_waits_no_more_gives_it_up():
    futures = [Future() for _ in range(3)]

    async def main():
        answers = ThreadAnswers()
        tasks = [asyncio.ensure_future(answers.result(each)) for each in futures]
        await asyncio.sleep(0)
        tasks[0].cancel()
        futures[1].set_exception(RequestFailed("these rows cannot be computed."))
        futures[2].set_result("yes")
        return await asyncio.gather(*tasks, return_exceptions=True)

    found, _ = run(main())
    assert [type(each) for each in found] == [asyncio.CancelledError, RequestFailed, str]
    assert futures[0].cancelled()


def test_an_answer_after_the_loop_is_closed_is_nobody_s():
    late = Future()

    async def main():
        waiting = ThreadAnswers().result(late)
        waiting.send(None)
        return waiting

    waiting, n_woken = run(main())
    late.set_result("late")
    assert n_woken == 0
    waiting.close()
