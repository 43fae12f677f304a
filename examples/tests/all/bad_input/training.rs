//! Failures during training.

use briquette_examples::train::{Control, train};

use crate::common::{Fault, Runs, Toy, quiet, settings};

/// Returns the error of a toy run on `ranks` ranks.
fn failure(ranks: usize, fault: Fault, more: &str) -> String {
    let runs = Runs::default();
    let toml = format!("ranks = {ranks}\nbatch = 2\nsteps = 8\ncheckpoint-every = 1\n{more}");
    let settings = settings(&runs.path("run"), &toml);
    let error = train(&settings, &Toy::new(96, Some(fault)), &quiet()).unwrap_err();
    let (Fault::Nan(_, step) | Fault::Panic(_, step) | Fault::Stop(step)) = fault else {
        panic!("{fault:?} stops nothing")
    };
    assert!(runs.metrics("run").len() as u64 >= step, "the steps before it are on record");
    assert_eq!(runs.checkpoints("run").last(), Some(&step), "and saved");
    format!("{error:#}")
}

#[test]
fn a_gradient_that_is_not_finite_stops_all_ranks_and_names_rank_slot_and_step() {
    for more in
        ["reducer = \"dense\"", "compressor = \"topk:0.5\"", "clock = \"fixed:50ms\"\nmomentum-correction = \"on\""]
    {
        let error = failure(3, Fault::Nan(1, 3), more);
        for word in ["step 3", "rank 1", "non-finite", "`weight`"] {
            assert!(error.contains(word), "no `{word}` in: {error}");
        }
    }
}

#[test]
fn what_was_trained_before_a_refused_gradient_is_saved_and_can_be_resumed() {
    let runs = Runs::default();
    let toml = "ranks = 3\nbatch = 2\nsteps = 8\ncheckpoint-every = 0\ncompressor = \"topk:0.5\"";
    let settings = settings(&runs.path("run"), toml);
    let error = train(&settings, &Toy::new(96, Some(Fault::Nan(1, 3))), &quiet()).unwrap_err();
    let error = format!("{error:#}");
    for word in ["stopped before step 3 and saved", "--resume", "computes this step again", "rank 1", "non-finite"] {
        assert!(error.contains(word), "no `{word}` in: {error}");
    }
    assert_eq!(runs.checkpoints("run"), [3]);
    // A diverged run stops there again, as the error said.
    let control = Control { resume: true, ..quiet() };
    let again = train(&settings, &Toy::new(96, Some(Fault::Nan(1, 3))), &control).unwrap_err();
    assert_eq!(format!("{again:#}"), error);
    let control = Control { resume: true, ..quiet() };
    assert_eq!(train(&settings, &Toy::new(96, None), &control).unwrap().steps, 8);
    assert_eq!(runs.metrics("run").len(), 8);
}

#[test]
fn a_rank_that_panics_stops_the_others_at_once_and_is_named() {
    for more in ["reducer = \"dense\"", "clock = \"fixed:50ms\"", "network = \"100mbit\"\nlocal-steps = 2"] {
        let error = failure(3, Fault::Panic(1, 2), more);
        for word in ["rank 1", "panicked: out of luck"] {
            assert!(error.contains(word), "no `{word}` in: {error}");
        }
    }
}
