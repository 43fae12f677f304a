//! Runs that are resumed after an interruption: stopped, killed, interrupted.

use std::fs;

use briquette::WorldChange;
use briquette::core::manifest::Manifest;
use briquette_examples::record::{Evaluation, Summary};
use briquette_examples::train::{Control, train};

use super::GRAVAC;
use crate::common::{AG_NEWS, CHAR_LM, CIFAR, Fault, Running, Runs, SMALL, Toy, quiet, settings};

/// Executes a run of `steps` steps in `out`.
fn run(runs: &Runs, out: &str, steps: u64, flags: &str) {
    let small = SMALL.replace("--steps 6", &format!("--steps {steps}"));
    runs.run(CIFAR, &format!("{small} --out {out} {flags}")).succeeds();
}

#[test]
fn a_run_stopped_by_steps_and_resumed_equals_one_never_stopped() {
    let averaged = "--reducer dense --average-from 2";
    for flags in ["--reducer dense", "--compressor topk:0.05", GRAVAC, averaged] {
        let runs = Runs::default();
        run(&runs, "whole", 6, flags);
        run(&runs, "broken", 3, flags);
        runs.run(CIFAR, "--resume broken --steps 6 --plain").succeeds();
        assert_eq!(runs.text("whole", "metrics.jsonl"), runs.text("broken", "metrics.jsonl"), "{flags}");
        let (whole, broken) = (runs.summary("whole"), runs.summary("broken"));
        // The end of the first half was evaluated, too.
        let best_test_accuracy = whole.best_test_accuracy;
        assert_eq!(whole, Summary { best_test_accuracy, ..broken }, "{flags}");
    }
}

#[test]
fn adam_local_steps_and_other_reducers_resume_to_the_bit() {
    for flags in [
        "--model lstm --compressor topk:0.05",
        "--model lstm --reducer power-sgd:2",
        "--model lstm --reducer shared-random-k:5x --controller schedule:from=2x",
        "--model lstm --local-steps 3",
    ] {
        let runs = Runs::default();
        let steps = |steps: u64| SMALL.replace("--steps 6", &format!("--steps {steps}"));
        runs.run(AG_NEWS, &format!("{} --out whole {flags}", steps(7))).succeeds();
        runs.run(AG_NEWS, &format!("{} --out broken {flags}", steps(4))).succeeds();
        runs.run(AG_NEWS, "--resume broken --steps 7 --plain").succeeds();
        assert_eq!(runs.text("whole", "metrics.jsonl"), runs.text("broken", "metrics.jsonl"), "{flags}");
        let (whole, broken) = (runs.summary("whole"), runs.summary("broken"));
        let best_test_accuracy = whole.best_test_accuracy;
        assert_eq!(whole, Summary { best_test_accuracy, ..broken }, "{flags}");
    }
}

/// A language model trains under SparseLoCo with Adam and with Muon, resumes to the bit within a period, and scores better than one code of 97
/// at random (6.6 bits).
#[test]
fn a_language_model_trains_and_resumes_to_the_bit() {
    let runs = Runs::default();
    let flags = |steps: u64| {
        let small = SMALL.replace("--steps 6", &format!("--steps {steps}")).replace("--batch 4", "--batch 2");
        format!("{} --strategy sparse-loco:4,ratio=8 --lr 0.003", small.replace("--test-limit 16", "--test-limit 8"))
    };
    runs.run(CHAR_LM, &format!("{} --out whole", flags(12))).succeeds();
    runs.run(CHAR_LM, &format!("{} --out broken", flags(6))).succeeds();
    runs.run(CHAR_LM, "--resume broken --steps 12 --plain").succeeds();
    assert_eq!(runs.text("whole", "metrics.jsonl"), runs.text("broken", "metrics.jsonl"));
    let summary = runs.summary("whole");
    assert!(summary.final_test_loss < 6.0 && summary.final_test_accuracy > 0.02, "{summary:?}");
    let muon = |steps: u64| format!("{} --optimizer muon", flags(steps));
    runs.run(CHAR_LM, &format!("{} --out muon", muon(12))).succeeds();
    runs.run(CHAR_LM, &format!("{} --out broken-muon", muon(6))).succeeds();
    runs.run(CHAR_LM, "--resume broken-muon --steps 12 --plain").succeeds();
    assert_eq!(runs.text("muon", "metrics.jsonl"), runs.text("broken-muon", "metrics.jsonl"));
    let with_muon = runs.summary("muon");
    assert!(with_muon.final_test_loss < 6.0 && with_muon.final_test_loss != summary.final_test_loss, "{with_muon:?}");
    let refused = runs.run(CHAR_LM, &format!("{SMALL} --model lstm --out other"));
    refused.refused(&["--model", "choose one of transformer"]);
}

/// Returns the records of a run, without values that depend on the number of ranks.
fn losses(runs: &Runs, out: &str) -> Vec<(u64, u64, f64, f64)> {
    let steps = runs.metrics(out);
    steps.iter().map(|step| (step.step, step.epoch, step.lr, step.loss.expect("a loss"))).collect()
}

/// Four ranks of 4 samples, and later two of 8: the same samples in every step.
#[test]
fn a_run_goes_on_with_another_number_of_ranks_where_it_was_in_its_data() {
    let runs = Runs::default();
    let begun = |out: &str, steps: u64| {
        let flags = "--dataset generated --train-limit 60 --test-limit 16 --epochs 3 --schedule constant --clock fixed:50ms --plain \
                     --model lstm --reducer dense --ranks 4 --batch 4";
        runs.run(AG_NEWS, &format!("{flags} --steps {steps} --out {out}")).succeeds();
    };
    begun("whole", 12);
    let whole = losses(&runs, "whole");
    assert_eq!(whole.len(), 12, "four steps an epoch, the last one of 12 samples");
    // In the middle of the second epoch, and at the end of the first.
    for (out, steps, ranks, batch) in [("middle", 6, 2, 8), ("end", 4, 1, 16), ("more", 6, 8, 2)] {
        begun(out, steps);
        let resume = format!("--resume {out} --plain --steps 12 --ranks {ranks} --batch {batch}");
        let refused = runs.run(AG_NEWS, &resume);
        refused.refused(&["--ranks is 4 there", "with --world-change, --ranks and --batch too"]);
        let said = runs.run(AG_NEWS, &format!("{resume} --world-change spread")).succeeds().stdout;
        assert!(said.contains(&format!("# ranks: 4 in the checkpoint, {ranks} here")), "{said}");
        assert_eq!(said.matches("# ranks:").count(), 1, "one rank says it: {said}");
        let changed = losses(&runs, out);
        assert_eq!(changed.len(), whole.len(), "{out}");
        for (now, then) in changed.iter().zip(&whole) {
            assert_eq!((now.0, now.1), (then.0, then.1), "{out}");
            assert!((now.3 - then.3).abs() < 1e-4 * then.3, "{out}: {now:?}, {then:?}");
        }
    }
    // Twice as many samples a step: three steps are left, of one and a half epochs.
    begun("larger", 6);
    let resume = "--resume larger --plain --steps 100 --ranks 2 --batch 16";
    runs.run(AG_NEWS, &format!("{resume} --world-change drop")).succeeds();
    let epochs = |out: &str| losses(&runs, out).iter().map(|step| step.1).collect::<Vec<_>>();
    assert_eq!(epochs("larger"), [0, 0, 0, 0, 1, 1, 1, 2, 2]);
    // It is a run of that size now.
    runs.run(AG_NEWS, "--resume larger --plain --epochs 4").succeeds();
    assert_eq!(epochs("larger"), [0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3]);
    let flags = "--dataset generated --train-limit 60 --test-limit 16 --model lstm --plain --steps 1 --schedule constant --batch 4";
    runs.run(AG_NEWS, &format!("{flags} --ranks 2 --non-iid 1 --out own")).succeeds();
    let refused = runs.run(AG_NEWS, "--resume own --plain --ranks 3 --world-change drop");
    refused.refused(&["--world-change: under --server and --non-iid each rank has its own part of the data"]);
}

#[test]
fn a_schedule_goes_on_where_it_was_in_a_world_of_another_size() {
    let runs = Runs::default();
    let toml =
        |ranks, batch| format!("ranks = {ranks}\nbatch = {batch}\nreducer = 'dense'\nepochs = 4\nschedule = 'cosine'");
    let rates = |out: &str| losses(&runs, out).iter().map(|step| (step.1, step.2.to_bits())).collect::<Vec<_>>();
    // As many samples a step, and half as many again.
    for (out, batch, steps) in [("equal", 4, 12), ("larger", 6, 8)] {
        let whole = format!("whole-{out}");
        train(&settings(&runs.path(&whole), &toml(2, batch)), &Toy::new(24, None), &quiet()).unwrap();
        assert_eq!(rates(&whole).len(), steps);
        let (path, stopping) = (runs.path(out), Toy::new(24, Some(Fault::Stop(3))));
        let control = Control { stop: stopping.stop.clone(), ..quiet() };
        let stopped = train(&settings(&path, &toml(4, 2)), &stopping, &control).unwrap();
        assert!(stopped.interrupted && (4..12).contains(&stopped.steps), "{stopped:?}");
        let resume = |change| {
            let control = Control { resume: true, world_change: change, ..quiet() };
            train(&settings(&path, &toml(2, batch)), &Toy::new(24, None), &control)
        };
        let refused = format!("{:#}", resume(None).unwrap_err());
        assert!(refused.contains("saved by 4 ranks, this world has 2"), "{refused}");
        resume(Some(WorldChange::DropResiduals)).unwrap();
        // From the position on they are those of a run that has always had this size.
        let (resumed, whole) = (rates(out), rates(&whole));
        let rest = &resumed[stopped.steps as usize..];
        assert!(!rest.is_empty() && whole.ends_with(rest), "{out}: {rest:?}, {whole:?}");
        let position = stopped.steps as usize * 8 / (2 * batch);
        assert_eq!(rest.len(), steps - position, "{out}");
    }
}

/// Returns BatchNorm's running statistics with which each rank continued, from its newest checkpoint.
fn own_buffers(runs: &Runs, out: &str) -> Vec<Vec<u8>> {
    let newest = runs.checkpoints(out).pop().expect("a checkpoint");
    let rank = |rank: u64| {
        let file = runs.path(out).join(format!("checkpoints/step-{newest:08}/rank-{rank}.safetensors"));
        let bytes = fs::read(file).unwrap();
        safetensors::SafeTensors::deserialize(&bytes).unwrap().tensor("buffers").unwrap().data().to_vec()
    };
    vec![rank(0), rank(1)]
}

#[test]
fn how_often_a_run_is_saved_and_evaluated_changes_no_bit_of_it() {
    let runs = Runs::default();
    // Two epochs of eight steps.
    let small = SMALL.replace("--steps 6", "--epochs 2");
    let run = |out: &str, flags: &str| {
        runs.run(CIFAR, &format!("{small} --model resnet8 --out {out} {flags}")).succeeds();
        (runs.text(out, "metrics.jsonl"), own_buffers(&runs, out), runs.summary(out))
    };
    let (metrics, buffers, summary) = run("often", "--checkpoint-every 1 --eval-every 1");
    assert_ne!(buffers[0], buffers[1], "each rank has its own");
    for (out, flags) in [
        ("seldom", "--checkpoint-every 0 --eval-every 2"),
        ("odd", "--checkpoint-every 3"),
        ("beside", "--checkpoint-every 2 --background-saving on"),
    ] {
        let (again, own, end) = run(out, flags);
        assert_eq!(metrics, again, "{flags}");
        assert!(buffers == own, "{flags}");
        let best_test_accuracy = summary.best_test_accuracy;
        assert_eq!(summary, Summary { best_test_accuracy, ..end }, "{flags}");
    }
    // And one that is extended, from a step at which the others neither end nor are evaluated.
    runs.run(CIFAR, &format!("{small} --steps 5 --model resnet8 --out longer")).succeeds();
    runs.run(CIFAR, "--resume longer --steps 16 --plain").succeeds();
    assert_eq!(metrics, runs.text("longer", "metrics.jsonl"));
    assert!(buffers == own_buffers(&runs, "longer"));
    assert_eq!(summary.final_test_loss.to_bits(), runs.summary("longer").final_test_loss.to_bits());
}

/// An exchange that a checkpoint waits for, or that a resumed run sends again, counts at the step that uses it.
#[test]
fn bytes_in_flight_count_once_however_often_a_run_is_saved_evaluated_or_resumed() {
    for strategy in [
        "sgp:exponential,staleness=2",
        "overlap-local-sgd:3",
        "cocod:3",
        "streaming-diloco:4,fragments=2,overlap=1",
        "delayed",
    ] {
        let runs = Runs::default();
        let flags = format!("--strategy {strategy}");
        run(&runs, "whole", 12, &format!("{flags} --checkpoint-every 0 --eval-every 100"));
        run(&runs, "often", 12, &format!("{flags} --checkpoint-every 1 --eval-every 1"));
        run(&runs, "broken", 4, &flags);
        for steps in [5, 6, 8, 12] {
            runs.run(CIFAR, &format!("--resume broken --steps {steps} --plain")).succeeds();
        }
        let bytes = |out: &str| {
            let records = runs.metrics(out).into_iter().map(|r| (r.step, r.bytes_sent, r.bytes_received));
            (records.collect::<Vec<_>>(), runs.summary(out).bytes_sent, runs.summary(out).bytes_received)
        };
        assert_eq!(bytes("often"), bytes("whole"), "{strategy}: saved at every step");
        assert_eq!(bytes("broken"), bytes("whole"), "{strategy}: resumed");
    }
}

#[test]
fn a_finished_run_resumed_stays_as_it_is() {
    let runs = Runs::default();
    run(&runs, "run", 3, "");
    let (metrics, summary) = (runs.text("run", "metrics.jsonl"), runs.summary("run"));
    runs.run(CIFAR, "--resume run --plain").succeeds();
    assert_eq!((runs.text("run", "metrics.jsonl"), runs.summary("run")), (metrics, summary));
}

/// Starts a long run and waits for its fifth record.
#[cfg(unix)]
fn long_run(runs: &Runs, flags: &str) -> Running {
    let small = SMALL.replace("--steps 6", "--epochs 500");
    let mut running = runs.start(CIFAR, &format!("{small} --out broken {flags}"));
    let metrics = runs.path("broken").join("metrics.jsonl");
    running.wait_until(|| fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() >= 5));
    running
}

#[cfg(unix)]
#[test]
fn a_killed_run_resumed_equals_one_never_killed() {
    for flags in ["--reducer dense", "--compressor topk:0.05", GRAVAC] {
        let runs = Runs::default();
        let flags = format!("--checkpoint-every 2 {flags}");
        let running = long_run(&runs, &flags);
        running.signal("KILL");
        assert_eq!(running.end().code, None, "killed");
        let kept = *runs.checkpoints("broken").last().expect("a checkpoint every other step");
        // Half a record, as a kill may leave it.
        let metrics = runs.path("broken").join("metrics.jsonl");
        let text = fs::read_to_string(&metrics).unwrap();
        fs::write(&metrics, text + "{\"step\":77,\"ep").unwrap();

        let steps = kept + 3;
        runs.run(CIFAR, &format!("--resume broken --steps {steps} --plain")).succeeds();
        let small = SMALL.replace("--steps 6", &format!("--epochs 500 --steps {steps}"));
        // At other steps: saving changes nothing.
        let seldom = flags.replace("--checkpoint-every 2", "--checkpoint-every 5");
        runs.run(CIFAR, &format!("{small} --out whole {seldom}")).succeeds();
        assert_eq!(runs.text("whole", "metrics.jsonl"), runs.text("broken", "metrics.jsonl"), "{flags}");
        assert_eq!(runs.summary("whole"), runs.summary("broken"), "{flags}");
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_leaves_a_checkpoint_says_so_and_goes_on_to_the_bit() {
    // A link that is slower than the steps, so that nothing about it may be forgotten.
    for network in ["100mbit,1ms", "2mbit,30ms"] {
        let runs = Runs::default();
        let flags = format!("--ranks 3 --compressor topk:0.05 --clock fixed:1ms --network {network}");
        let small = ["--ranks 2", "--clock fixed:50ms --network 100mbit,1ms"]
            .iter()
            .fold(SMALL.to_owned(), |s, part| s.replace(part, ""));
        let long = small.replace("--steps 6", "--epochs 500 --eval-every 400");
        let mut running = runs.start(CIFAR, &format!("{long} --out broken {flags}"));
        let metrics = runs.path("broken").join("metrics.jsonl");
        running.wait_until(|| fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() >= 3));
        running.signal("INT");
        let ended = running.end();
        assert_eq!(ended.code, Some(130), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("stopping after this step") && ended.stdout.contains("continue with --resume broken")
        );
        let stopped = runs.summary("broken");
        assert!(stopped.interrupted && stopped.final_test_accuracy.is_nan(), "nothing was evaluated");
        assert_eq!(runs.checkpoints("broken").last(), Some(&stopped.steps));
        assert_eq!(runs.metrics("broken").len() as u64, stopped.steps);

        let steps = stopped.steps + 3;
        runs.run(CIFAR, &format!("--resume broken --steps {steps} --plain")).succeeds();
        let whole = long.replace("--epochs 500", &format!("--epochs 500 --steps {steps}"));
        runs.run(CIFAR, &format!("{whole} --out whole {flags}")).succeeds();
        assert_eq!(runs.text("whole", "metrics.jsonl"), runs.text("broken", "metrics.jsonl"), "{network}");
        let (whole, broken) = (runs.summary("whole"), runs.summary("broken"));
        assert!(!broken.interrupted && whole.final_test_loss.to_bits() == broken.final_test_loss.to_bits());
        assert_eq!(whole.bytes_sent, broken.bytes_sent);
        assert_eq!(whole.simulated_seconds, broken.simulated_seconds);
    }
}

#[test]
fn an_interrupt_at_the_last_step_of_an_epoch_leaves_its_evaluation_to_the_resumed_run() {
    // 24 samples: three steps an epoch. One rank, so that the wish is voiced in the step after the one it is made in.
    for (epochs, stop_at, evaluations) in [(1, 1, 1), (2, 1, 2), (2, 4, 2)] {
        let runs = Runs::default();
        let toml = format!("ranks = 1\nbatch = 8\nreducer = \"dense\"\nepochs = {epochs}");
        let settings = settings(&runs.path("run"), &toml);
        let toy = Toy::new(24, Some(Fault::Stop(stop_at)));
        let stopped = train(&settings, &toy, &Control { stop: toy.stop.clone(), ..quiet() }).unwrap();
        assert!(stopped.interrupted && stopped.steps == stop_at + 2, "{stopped:?}");
        let rest = Toy::new(24, None);
        let done = train(&settings, &rest, &Control { resume: true, ..quiet() }).unwrap();
        assert!(!done.interrupted && done.final_test_accuracy.is_finite() && done.final_test_loss.is_finite());
        let scored = toy.scored.lock().unwrap().len() + rest.scored.lock().unwrap().len();
        assert_eq!(scored, evaluations, "once an epoch");
        let written: Vec<Evaluation> = serde_json::from_str(&runs.text("run", "evaluations.json")).unwrap();
        let steps: Vec<u64> = written.iter().map(|evaluation| evaluation.step).collect();
        assert_eq!(steps, (1..=evaluations as u64).map(|epoch| 3 * epoch).collect::<Vec<_>>());
        assert_eq!(written.last().unwrap().test_accuracy, done.final_test_accuracy);
        // A finished run is not evaluated again.
        train(&settings, &rest, &Control { resume: true, ..quiet() }).unwrap();
        assert_eq!(toy.scored.lock().unwrap().len() + rest.scored.lock().unwrap().len(), evaluations);
    }
}

/// 48 samples: six steps an epoch. Both processes are stopped within the first.
#[test]
fn evaluations_after_the_checkpoint_are_dropped_by_the_resumed_run() {
    let runs = Runs::default();
    let settings = settings(&runs.path("run"), "ranks = 1\nbatch = 8\nreducer = \"dense\"\nepochs = 2");
    let train = |stop_at: u64, resume: bool| {
        let toy = Toy::new(48, Some(Fault::Stop(stop_at)));
        train(&settings, &toy, &Control { stop: toy.stop.clone(), resume, ..quiet() }).unwrap().steps
    };
    assert_eq!(train(1, false), 3);
    fs::write(runs.path("run/evaluations.json"), r#"[{"step": 6, "test_accuracy": 0.5, "test_loss": 1.0}]"#).unwrap();
    assert_eq!(train(3, true), 5);
    assert_eq!(runs.text("run", "evaluations.json"), "[]\n");
}

/// Threat F1.
#[test]
fn a_damaged_checkpoint_is_passed_over_for_the_one_before_and_said_aloud() {
    let runs = Runs::default();
    let flags = format!("--checkpoint-every 2 {GRAVAC}");
    run(&runs, "whole", 6, &flags);
    run(&runs, "broken", 4, &flags);
    assert_eq!(runs.checkpoints("broken"), [2, 4]);
    let file = runs.path("broken/checkpoints/step-00000004/rank-1.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let said = runs.run(CIFAR, "--resume broken --steps 6 --plain").succeeds().stderr;
    for word in ["step-00000004", "rank-1.safetensors", "damaged", "going back to step 2"] {
        assert!(said.contains(word), "no `{word}` in {said}");
    }
    assert_eq!(runs.text("whole", "metrics.jsonl"), runs.text("broken", "metrics.jsonl"));
}

#[test]
fn totals_that_cannot_be_read_give_way_to_the_checkpoint_before_and_are_said_aloud() {
    let runs = Runs::default();
    run(&runs, "whole", 6, "--checkpoint-every 2");
    run(&runs, "broken", 4, "--checkpoint-every 2");
    let path = runs.path("broken/checkpoints/step-00000004/manifest.json");
    let mut manifest = Manifest::parse(&fs::read(&path).unwrap()).unwrap();
    manifest.notes.insert("totals".into(), "{\"bytes_sent\":null}".into());
    fs::write(&path, manifest.to_text().unwrap()).unwrap();
    let said = runs.run(CIFAR, "--resume broken --steps 6 --plain").succeeds().stderr;
    for word in ["step-00000004", "its totals cannot be read", "going back to step 2"] {
        assert!(said.contains(word), "no `{word}` in {said}");
    }
    assert_eq!(runs.text("whole", "metrics.jsonl"), runs.text("broken", "metrics.jsonl"));
    assert_eq!(runs.summary("whole").bytes_sent, runs.summary("broken").bytes_sent);
}
