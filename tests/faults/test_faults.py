"""A few faults of every kind; `python tests/faults/run.py` injects the full number and records the figures."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(900)


def assert_survived(found, count: int) -> None:
    assert found.count >= count and not found.failures, "\n".join(found.failures)


@pytest.mark.parametrize("subject", ["masked_lm", "causal_lm", "encoder-decoder", "gradual unfreezing"])
def test_a_run_killed_at_random_moments_ends_like_an_undisturbed_one(ground, subject):
    from campaigns import kills

    assert_survived(kills.campaign(ground, 2, seed=len(subject), subjects=(subject,)), 2)


def test_a_run_killed_while_it_saves_in_the_background_loses_two_steps_at_most(ground):
    from campaigns import kills

    assert_survived(kills.background(ground, 2, subjects=("causal_lm",)), 2)


def test_a_run_killed_at_a_system_call_of_a_save_is_readable(ground):
    from campaigns import syscalls

    if not syscalls.available():
        pytest.skip("strace is missing or may not attach; install it to run this")
    assert_survived(syscalls.campaign(ground, 40), 40)


def test_damage_to_a_checkpoint_is_detected(ground):
    from campaigns import corruption

    assert_survived(corruption.campaign(ground, 200), 200)


def test_nan_and_inf_change_nothing(ground):
    from campaigns import bad_numbers

    assert_survived(bad_numbers.campaign(ground, 18), 18)


def test_the_launcher_restarts_a_job_after_a_rank_was_killed(ground):
    from campaigns import ranks

    assert_survived(ranks.campaign(ground, 1), 1)


@pytest.mark.long
def test_three_nodes_continue_without_the_fourth_and_with_it_again(ground):
    """Each start waits for torch's rendezvous; the short form is a killed rank, above."""
    from campaigns import nodes

    if reason := nodes.namespaces.missing():
        pytest.skip(reason)
    assert_survived(nodes.campaign(ground, 1), 1)


@pytest.mark.long
def test_a_node_that_is_cut_off_for_a_while_does_not_end_the_run(ground):
    from campaigns import nodes

    if reason := nodes.namespaces.missing():
        pytest.skip(reason)
    assert_survived(nodes.partitions(ground, 1), 1)


def test_on_sigterm_the_launcher_lets_its_ranks_save_and_exits_with_75(ground):
    """Meanwhile, the processes listen on the loopback interface only."""
    from campaigns import ports, ranks

    seen = set()
    assert_survived(ranks.stopped(ground, look=lambda launcher: seen.update(ports.listening(launcher))), 1)
    assert len(seen) >= 2 and all(ports.is_loopback(address) for address, _ in seen), seen


def test_other_numbers_of_processes_and_workers_read_the_same_batches(ground):
    from campaigns import worlds

    assert_survived(worlds.campaign(ground, workers=(1,)), 4)


def test_a_terminated_run_loses_nothing(ground):
    from campaigns import signals

    assert_survived(signals.terminated(ground, 2), 2)


def test_a_paused_run_and_a_run_under_a_jumping_clock_lose_nothing(ground):
    from campaigns import signals

    assert_survived(signals.paused(ground, 3), 3)
    assert_survived(signals.jumping_clock(ground, 1), 1)


def test_the_last_checkpoint_survives_a_full_disk(ground):
    from campaigns import full_disk

    if not full_disk.available(ground):
        pytest.skip("a tmpfs cannot be mounted; run as root to fill a disk")
    assert_survived(full_disk.campaign(ground, 2), 2)


def test_malformed_inputs_are_refused_or_accounted_for(ground):
    from campaigns import bad_inputs

    assert_survived(bad_inputs.campaign(ground, 200), 200)


def test_a_corpus_in_a_store_is_read_whole_or_an_error_names_the_object(ground):
    from campaigns import store_faults

    assert_survived(store_faults.campaign(ground, 48), 48)


def test_a_local_ray_cluster_listens_on_the_loopback_interface_only_and_asks_for_its_token(ground):
    pytest.importorskip("ray")
    from campaigns import ports

    assert_survived(ports.local_ray(ground), 3)


def test_processes_end_with_a_killed_launcher(ground):
    from campaigns import ports

    assert_survived(ports.orphans(ground), 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "verbs",
    [
        ("index",),
        # Their short forms are in tests/runs/test_corpus.py and test_study.py, and the test of a killed rank above.
        pytest.param(("corpus", "study", "two processes"), marks=pytest.mark.long),
    ],
)
def test_every_verb_killed_at_random_moments_ends_with_the_same_files(ground, verbs):
    from campaigns import verbs as campaigns

    assert_survived(campaigns.campaign(ground, 2, verbs=verbs), 2)


@pytest.mark.slow
def test_faults_of_the_machine_end_with_one_sentence_or_change_nothing(ground):
    from campaigns import environment, full_disk

    if not full_disk.available(ground):
        pytest.skip("a tmpfs cannot be mounted; run as root to make a read-only disk")
    assert_survived(environment.campaign(ground), 14)
