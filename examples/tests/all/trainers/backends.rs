//! Choice of backends and synchronization of ranks, to the extent that every build can test them.

use briquette_examples::record::StepRecord;

use crate::common::{AG_NEWS, CIFAR, Runs, SMALL};

#[test]
fn a_list_shows_what_this_build_has_and_how_to_get_the_rest() {
    for program in [CIFAR, AG_NEWS] {
        let said = Runs::default().run(program, "--backend list").succeeds().stdout;
        assert!(said.contains("Flex(Cpu)"), "{said}");
        for name in ["flex", "ndarray", "tch", "wgpu", "vulkan", "metal", "cuda"] {
            assert!(said.contains(name), "no {name} in {said}");
        }
        #[cfg(not(feature = "metal"))]
        assert!(said.contains("not in this build; add --features metal"), "{said}");
    }
}

#[test]
fn a_device_for_each_rank_in_turn_changes_nothing_where_it_is_the_same_one() {
    let runs = Runs::default();
    runs.cifar("one", "--compressor topk:0.05").succeeds();
    runs.cifar("each", "--compressor topk:0.05 --backend flex,flex --device 0,0").succeeds();
    assert_eq!(runs.text("one", "metrics.jsonl"), runs.text("each", "metrics.jsonl"));
}

#[test]
fn rebroadcasts_are_counted_and_show_that_replicas_were_equal() {
    let runs = Runs::default();
    runs.cifar("never", "--compressor topk:0.05").succeeds();
    runs.cifar("often", "--compressor topk:0.05 --rebroadcast 3").succeeds();
    let (never, often) = (runs.metrics("never"), runs.metrics("often"));
    assert!(never.iter().all(|record| record.drift.is_none()), "one kind of device needs none");
    let drifts: Vec<_> = often.iter().map(|record| record.drift).collect();
    assert_eq!(drifts, [None, None, Some(0.0), None, None, Some(0.0)]);
    let losses = |records: &[StepRecord]| records.iter().map(|record| record.loss).collect::<Vec<_>>();
    assert_eq!(losses(&never), losses(&often), "what is equal already stays as it is");
    let parameters = 77_850 * 4;
    for (never, often) in never.iter().zip(&often) {
        let more = often.bytes_sent - never.bytes_sent;
        // Rank 0 sends its parameters and its own drift, and receives the other one's.
        assert_eq!(more, if often.drift.is_some() { parameters + 8 } else { 0 }, "step {}", often.step);
    }
}

#[test]
fn a_resumed_run_may_name_another_device_and_rebroadcast() {
    let runs = Runs::default();
    let short = SMALL.replace("--steps 6", "--steps 3");
    runs.run(CIFAR, &format!("{short} --out run")).succeeds();
    runs.run(CIFAR, "--resume run --steps 6 --backend flex,flex --device 0,0 --rebroadcast 2 --plain").succeeds();
    let drifts: Vec<_> = runs.metrics("run").iter().map(|record| record.drift).collect();
    assert_eq!(drifts, [None, None, None, Some(0.0), None, Some(0.0)]);
}
