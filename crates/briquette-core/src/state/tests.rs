use super::{OnResize, Place, Staged, State, Stateful};
use crate::error::StateError;
use crate::{CompressionRatio, stateful};

/// One field of every kind.
#[derive(Default)]
struct Everything {
    memory: Staged<Vec<f32>>,
    shift: Staged<Vec<f32>>,
    weight: Staged<f32>,
    absent: Staged<Vec<f64>>,
    limit: Option<CompressionRatio>,
    sums: [f64; 2],
    steps: u64,
    inner: Inner,
    base: Option<Inner>,
    hidden: Inner,
    rounds: Vec<Inner>,
    has_hidden: bool,
    hooks: [u8; 3],
}

#[derive(Default)]
struct Inner {
    level: Staged<u64>,
}

stateful! {
    impl Stateful for Everything as it {
        memory: vector("memory").rank_local(Spread),
        shift: vector("shift").exactly_like("memory"),
        weight: scalar("weight", 1.0),
        absent: optional("absent"),
        [limit, sums, steps]: numbers("numbers"),
        inner: part("inner").rank_local(Drop),
        base: if_some(part("base")),
        hidden: when(it.has_hidden, part("hidden")),
        rounds: parts("round"),
    }
    check: |_, state| match state.f64s("numbers")? {
        [.., steps] if *steps > 9.0 => Err(StateError::mismatch("numbers", "at most 9 steps", steps)),
        _ => Ok(()),
    };
    after_load: |it| it.hooks[0] += 1;
    after_commit: |it| it.hooks[1] += 1;
    after_discard: |it| it.hooks[2] += 1;
}

stateful! {
    impl Stateful for Inner { level: value("level") }
}

fn saved(part: &dyn Stateful) -> State {
    let mut state = State::default();
    part.save(&mut state);
    state
}

/// Stages a value in every staged field.
fn step(all: &mut Everything) {
    let rounds = all.rounds.iter_mut().chain(&mut all.base).chain([&mut all.inner, &mut all.hidden]);
    for Inner { level } in rounds {
        *level.next_mut() = level.now() + 1;
        level.stage();
    }
    for vector in [&mut all.memory, &mut all.shift] {
        vector.fit(2).unwrap();
        vector.next_mut().fill(3.0);
        vector.stage();
    }
    *all.weight.next_mut() = 0.5;
    all.weight.stage();
    *all.absent.next_mut() = vec![7.0];
    all.absent.stage();
}

fn everything() -> Everything {
    let limit = CompressionRatio::new(4.0).ok();
    let rounds = vec![Inner::default(), Inner::default()];
    Everything { limit, sums: [1.0, 2.0], steps: 5, base: Some(Inner::default()), rounds, ..Everything::default() }
}

#[test]
fn every_field_is_saved_under_its_name_and_loaded() {
    let mut all = everything();
    let names: Vec<String> = saved(&all).iter().map(|(name, _)| name.to_owned()).collect();
    let all_but_absent =
        ["base/level", "inner/level", "memory", "numbers", "round-0/level", "round-1/level", "shift", "weight"];
    assert_eq!(names, all_but_absent);
    step(&mut all);
    all.commit();
    let state = saved(&all);
    assert_eq!(state.f64s("numbers").unwrap(), [4.0, 1.0, 2.0, 5.0]);
    assert_eq!((state.f32s("memory", None).unwrap(), state.u64("inner/level")), (&[3.0; 2][..], Ok(1)));
    let replicated: Vec<&str> = state.replicated().map(|(name, _)| name).collect();
    assert_eq!(replicated, ["absent", "base/level", "numbers", "round-0/level", "round-1/level", "shift"]);
    let mut resumed = Everything { limit: None, steps: 0, sums: [0.0; 2], ..everything() };
    resumed.load(&state).unwrap();
    assert_eq!((saved(&resumed), resumed.hooks), (state, [1, 0, 0]));
}

#[test]
fn a_discarded_step_leaves_no_trace_and_hooks_run() {
    let mut all = Everything { has_hidden: true, ..everything() };
    let before = saved(&all);
    step(&mut all);
    all.discard();
    all.commit();
    assert_eq!((saved(&all), all.hooks), (before.clone(), [0, 1, 1]));
    step(&mut all);
    all.commit();
    let after = saved(&all);
    for (name, value) in before.iter().filter(|(name, _)| *name != "numbers") {
        assert_ne!(after.get(name), Ok(value), "{name}");
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused_and_changes_no_value() {
    let put = |numbers: &[f64], shift: usize| {
        let mut state = State::default();
        state.put("memory", vec![5.0_f32; 2]);
        state.put("shift", vec![5.0_f32; shift]);
        state.put("weight", Vec::<f32>::new());
        state.put("numbers", numbers.to_vec());
        for name in ["inner/level", "base/level", "round-0/level", "round-1/level"] {
            state.put(name, 1_u64);
        }
        state
    };
    let mut all = everything();
    let before = saved(&all);
    for (state, named) in [
        (put(&[4.0, 1.0, 2.0], 2), "`numbers`"),
        (put(&[4.0, 1.0, 2.0, 5.0, 6.0], 2), "expected 4 numbers"),
        (put(&[4.0, 1.0, 2.0, 10.0], 2), "at most 9 steps"),
        (put(&[4.0, 1.0, 2.0, 5.0], 1), "`shift` is 1 f32 values, expected 2"),
    ] {
        let error = all.load(&state).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
        for name in ["memory", "shift", "weight", "numbers"] {
            assert_eq!(saved(&all).get(name), before.get(name), "{named}: {name}");
        }
    }
    all.load(&put(&[4.0, 1.0, 2.0, 6.0], 2)).unwrap();
    // An empty weight was dropped, because the world size changed.
    assert_eq!((*all.weight.now(), all.steps, &all.memory.now()[..]), (1.0, 6, &[5.0; 2][..]));
}

/// Three of four ranks go on: 4 · 3/4 = 3. The mean over ranks of what waits is then that of the survivors' share before: (4 + 8 + 12) / 4
/// = (3 + 6 + 9) / 3.
#[test]
fn golden_what_waits_keeps_its_weight_when_a_rank_is_lost() {
    let own = |values: [f32; 3]| {
        let mut state = State::default();
        for (name, resize, value) in [
            ("residual", OnResize::Waits, values[0]),
            ("velocity", OnResize::Keep, values[1]),
            ("in flight", OnResize::Drop, values[2]),
        ] {
            state.put_at(Place::PerRank(resize), name, vec![value]);
        }
        state
    };
    for (before, after) in [(4.0, 3.0), (8.0, 6.0), (12.0, 9.0)] {
        let mut state = own([before, 5.0, 7.0]);
        state.survive(&own([0.0; 3]), 4, 3);
        assert_eq!(state.f32s("residual", None), Ok(&[after][..]));
        assert_eq!(state.f32s("velocity", None), Ok(&[5.0][..]));
        assert_eq!(state.f32s("in flight", None), Ok(&[][..]));
    }
}
