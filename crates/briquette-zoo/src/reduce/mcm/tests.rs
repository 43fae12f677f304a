use super::*;
use crate::reduce::artemis::draw;
use briquette_core::comm::Local;
use briquette_core::error::ReduceError;
use briquette_core::reduce::{AgreedStep, Round};
use briquette_core::state::State;
use briquette_core::{Key, Layout};

const LEN: usize = 23;

fn input(rank: usize, step: u64) -> Vec<f32> {
    (0..LEN).map(|i| ((i * 7 + rank * 3) as f32 * 0.61 + step as f32 * 0.3).sin() * (1.0 + rank as f32)).collect()
}

fn rate(step: u64) -> f32 {
    [0.5, 0.25, 0.0, 0.125][step as usize % 4]
}

/// Returns rank 0's averages and contributions, and all ranks' states after the last step.
fn run(reducer: &str, steps: u64) -> (Vec<[Vec<f32>; 2]>, Vec<State>) {
    let exchange = Exchange { reducer: reducer.parse().unwrap(), ..Exchange::default() };
    let layout = Layout::flat(LEN);
    let ranks = Local::run(3, |mut comm| {
        let mut reducer = exchange.reducer.get().build(&exchange, &layout).unwrap();
        let mut outcomes = Vec::new();
        for step in 0..steps {
            let (mut average, mut sent, input) = (vec![9.0; LEN], vec![9.0; LEN], input(comm.rank(), step));
            let learning_rate = Some(f64::from(rate(step)));
            let (key, slots) = (Key::new(4).step(step), layout.slots());
            let agreed_step = &AgreedStep { step, learning_rate, ..AgreedStep::default() };
            let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: Some(&mut sent) };
            reducer.exchange(round, &mut comm)?;
            outcomes.push([average, sent]);
        }
        let mut state = State::default();
        reducer.save(&mut state);
        Ok::<_, ReduceError>((outcomes, state))
    });
    let (mut outcomes, states): (Vec<_>, Vec<_>) = ranks.into_iter().map(Result::unwrap).unzip();
    let means: Vec<Vec<f32>> = (0..steps as usize)
        .map(|step| (0..LEN).map(|i| outcomes.iter().map(|rank| rank[step][1][i]).sum::<f32>() / 3.0).collect())
        .collect();
    let first = outcomes.swap_remove(0);
    let same = outcomes.iter().all(|rank| rank.iter().zip(&first).all(|(a, b)| a[0] == b[0]));
    assert_eq!(same, !reducer.contains("per_rank"), "{reducer}");
    (first.into_iter().zip(means).map(|([average, _], mean)| [average, mean]).collect(), states)
}

#[test]
fn without_loss_on_the_way_down_it_is_artemis_which_is_diana() {
    crate::install();
    for alpha in ["0", "0.25"] {
        let mcm = run(&format!("mcm:qsgd:3:8:l2,down=dense,alpha={alpha},model_alpha=0.5"), 8).0;
        let artemis = run(&format!("artemis:qsgd:3:8:l2,down=dense,alpha={alpha}"), 8).0;
        for (step, (a, b)) in mcm.iter().zip(&artemis).enumerate() {
            let near = a[0].iter().zip(&b[0]).all(|(a, b)| (a - b).abs() < 1e-4);
            assert!(near, "alpha {alpha}, step {step}: {:?}, {:?}", a[0], b[0]);
        }
    }
}

/// Simulates servers and ranks as in the paper: a model on the servers, another on the ranks, a memory between them. The messages equal
/// those of the reducer, because both compress the same values under the same key.
#[test]
fn what_sgd_makes_of_the_averages_is_the_ranks_model_of_the_paper() {
    crate::install();
    let (outcomes, states) = run("mcm:dense,down=qsgd:4:8:l2,alpha=0,model_alpha=0.25,server=1", 8);
    let (mut w, mut h, mut trained) = (vec![0.0_f32; LEN], vec![0.0_f32; LEN], vec![0.0_f32; LEN]);
    let mut compressor = "qsgd:4:8:l2".parse::<CompressorConfig>().unwrap().build();
    for (step, [average, mean]) in outcomes.iter().enumerate() {
        let rate = rate(step as u64);
        trained.iter_mut().zip(average).for_each(|(x, average)| *x -= rate * average);
        if rate == 0.0 {
            continue;
        }
        w.iter_mut().zip(mean).for_each(|(w, mean)| *w -= rate * mean);
        // H − w, because decreases are sent with this sign.
        let difference: Vec<f32> = h.iter().zip(&w).map(|(h, w)| h - w).collect();
        let (mut message, mut sent) = (briquette_core::Message::default(), vec![0.0; LEN]);
        compressor.compress_into(&difference, Key::new(4).step(step as u64).purpose("down").bucket(1), &mut message);
        message.decode_into(&mut sent).unwrap();
        for (i, (h, sent)) in h.iter_mut().zip(&sent).enumerate() {
            assert!(
                (trained[i] - (*h - sent)).abs() < 2e-3,
                "step {step}, value {i}: {} and {}",
                trained[i],
                *h - sent
            );
            *h -= 0.25 * sent;
        }
    }
    let kept = states[1].f32s("kept", Some(LEN)).unwrap();
    assert!(kept.iter().zip(h.iter().zip(&w)).all(|(kept, (h, w))| (kept - (h - w)).abs() < 2e-3));
    assert!(kept.iter().any(|kept| kept.abs() > 0.01));
}

/// A server draws a separate message for each rank, and remembers that rank's model.
#[test]
fn a_message_for_each_rank_is_that_rank_s_own_from_a_memory_of_its_own() {
    crate::install();
    let (outcomes, states) = run("mcm:dense,down=qsgd:4:8:l2,alpha=0,model_alpha=0.25,server=1,per_rank=true", 8);
    let kept = states[1].f32s("kept", Some(3 * LEN)).unwrap();
    let mut compressor = "qsgd:4:8:l2".parse::<CompressorConfig>().unwrap().build();
    let (mut message, mut sent) = (briquette_core::Message::default(), vec![0.0; LEN]);
    for (to, kept) in kept.chunks_exact(LEN).enumerate() {
        let (mut memory, mut last) = (vec![0.0_f32; LEN], vec![0.0_f32; LEN]);
        for (step, [average, mean]) in outcomes.iter().enumerate().filter(|(step, _)| rate(*step as u64) > 0.0) {
            let rate = rate(step as u64);
            memory.iter_mut().zip(mean).for_each(|(x, mean)| *x += rate * mean);
            let key = Key::new(4).step(step as u64).purpose("down").bucket(1).rank(to);
            compressor.compress_into(&memory, key, &mut message);
            message.decode_into(&mut sent).unwrap();
            // Only rank 0's averages are available.
            let averages = sent.iter().zip(&last).map(|(sent, last)| (sent - 0.75 * last) / rate);
            let near = averages.zip(average).all(|(expected, average)| (expected - average).abs() < 1e-2);
            assert_eq!(near, to == 0, "step {step}, to rank {to}");
            memory.iter_mut().zip(&sent).for_each(|(x, sent)| *x -= 0.25 * sent);
            last.copy_from_slice(&sent);
        }
        assert!(kept.iter().zip(&memory).all(|(a, b)| (a - b).abs() < 2e-3), "for rank {to}");
    }
}

/// Returns the ranks that take part at a step.
fn active(step: u64) -> Vec<bool> {
    draw(Key::new(4).step(step), 0.5, 3)
}

/// The compressor is lossless, so an active rank has the servers' model, `w ← w − γ/(p̂N) Σ g`. An absent rank has the model of the last
/// step in which it took part.
#[test]
fn an_absent_rank_keeps_its_model_and_one_message_brings_it_back() {
    crate::install();
    let exchange = "mcm:dense,down=dense,alpha=0,model_alpha=0.25,server=1,per_rank=true,participation=0.5";
    let exchange = Exchange { reducer: exchange.parse().unwrap(), ..Exchange::default() };
    let layout = Layout::flat(LEN);
    // For 3 ranks, drawn again if none takes part: ½/(1 − ⅛).
    let weight = (7.0 / 8.0) / 0.5 / 3.0;
    let mut w = vec![vec![0.0_f32; LEN]];
    for step in 0..12 {
        let mut next = w[step as usize].clone();
        for rank in (0..3).filter(|rank| active(step)[*rank]) {
            next.iter_mut().zip(input(rank, step)).for_each(|(w, g)| *w -= rate(step) * weight * g);
        }
        w.push(next);
    }
    let absences = Local::run(3, |mut comm| {
        let mut reducer = exchange.reducer.get().build(&exchange, &layout).unwrap();
        let (rank, mut x, mut average) = (comm.rank(), vec![0.0_f32; LEN], vec![9.0; LEN]);
        let (mut last, mut absent) = (0, 0);
        for step in 0..12 {
            let (learning_rate, input) = (Some(f64::from(rate(step))), input(rank, step));
            let (key, slots, before) = (Key::new(4).step(step), layout.slots(), comm.traffic());
            let agreed_step = &AgreedStep { step, learning_rate, ..AgreedStep::default() };
            let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: None };
            reducer.exchange(round, &mut comm)?;
            x.iter_mut().zip(&average).for_each(|(x, average)| *x -= rate(step) * average);
            // At a rate of 0 nothing moves.
            if active(step)[rank] && rate(step) > 0.0 {
                last = step as usize + 1;
            }
            let near = x.iter().zip(&w[last]).all(|(x, w)| (x - w).abs() < 1e-4);
            assert!(near, "rank {rank}, step {step}: {x:?}, expected {:?}", w[last]);
            if !active(step)[rank] {
                absent += 1;
                let traffic = comm.traffic() - before;
                assert!(rank == 1 || traffic.received < 20, "step {step}: {traffic:?}");
            }
        }
        Ok::<_, ReduceError>(absent)
    });
    assert!(absences.into_iter().map(Result::unwrap).sum::<u64>() > 5);
}

/// A server's memory of a rank continues while that rank is absent, as if it had been sent nothing.
#[test]
fn what_an_absent_rank_missed_is_in_its_next_message() {
    crate::install();
    let text = "mcm:dense,down=qsgd:4:8:l2,alpha=0,model_alpha=0.25,server=1,per_rank=true,participation=0.5";
    let (outcomes, states) = run(text, 12);
    let mut compressor = "qsgd:4:8:l2".parse::<CompressorConfig>().unwrap().build();
    let (mut message, mut sent) = (briquette_core::Message::default(), vec![0.0; LEN]);
    let (mut memory, mut last, mut absent) = (vec![0.0_f32; LEN], vec![0.0_f32; LEN], 0);
    for (step, [average, mean]) in (0..).zip(&outcomes).filter(|(step, _)| rate(*step) > 0.0) {
        let rate = rate(step);
        memory.iter_mut().zip(mean).for_each(|(x, mean)| *x += rate * mean);
        if !active(step)[0] {
            assert!(average.iter().all(|average| *average == 0.0), "step {step}: {average:?}");
            absent += 1;
            continue;
        }
        let key = Key::new(4).step(step).purpose("down").bucket(1).rank(0);
        compressor.compress_into(&memory, key, &mut message);
        message.decode_into(&mut sent).unwrap();
        for (i, (sent, last)) in sent.iter().zip(&last).enumerate() {
            let expected = (sent - 0.75 * last) / rate;
            assert!((average[i] - expected).abs() < 1e-2, "step {step}: {} and {expected}", average[i]);
        }
        memory.iter_mut().zip(&sent).for_each(|(x, sent)| *x -= 0.25 * sent);
        last.copy_from_slice(&sent);
    }
    assert!((2..8).contains(&absent), "{absent}");
    let kept = &states[1].f32s("kept", Some(3 * LEN)).unwrap()[..LEN];
    assert!(kept.iter().zip(&memory).all(|(a, b)| (a - b).abs() < 1e-3));
}

/// A shared message reaches ranks that sent nothing, too.
#[test]
fn where_one_message_goes_to_all_every_rank_has_the_same_model_at_every_step() {
    crate::install();
    let text = "mcm:dense,down=dense,alpha=0.25,model_alpha=0.25,participation=0.5";
    for (step, [average, mean]) in run(text, 8).0.iter().enumerate() {
        assert!(average.iter().zip(mean).all(|(a, b)| (a - b).abs() < 1e-4), "step {step}: {average:?}, {mean:?}");
    }
}

#[test]
fn replicas_that_differ_are_for_a_strategy_that_lets_them() {
    crate::install();
    use briquette_core::config::Config;
    for reducer in ["mcm:qsgd:4,per_rank=true", "byzantine:(mcm:qsgd:4,per_rank=true)"] {
        let exchange = Exchange { reducer: reducer.parse().unwrap(), ..Exchange::default() };
        assert!(exchange.reducer.get().requires_plain_sgd(), "{reducer}");
        let config = |strategy: &str| Config { strategy: strategy.parse().unwrap(), exchange: exchange.clone() };
        let strategy = config("every-step").build(&Layout::flat(100), 4).unwrap();
        assert!(!strategy.plan(3).replicas_equal && strategy.plan(3).gradients, "{reducer}");
        let error = config("delayed").build(&Layout::flat(100), 4).map(drop).unwrap_err().to_string();
        assert!(
            error.contains("per-rank=true")
                && error.contains("strategy delayed")
                && error.contains("use strategy every-step"),
            "{error}"
        );
    }
}

#[test]
fn impossible_settings_name_what_is_wrong_before_any_rank_talks() {
    crate::install();
    let error = |reducer: &str, feedback: &str| {
        let reducer = match reducer.parse() {
            Ok(reducer) => reducer,
            Err(error) => return briquette_core::error::ConfigError::to_string(&error),
        };
        let exchange = Exchange { reducer, feedback: feedback.parse().unwrap(), ..Exchange::default() };
        exchange.build_reducer(&Layout::flat(100), 4).map(drop).unwrap_err().to_string()
    };
    for (reducer, feedback, words) in [
        ("mcm:topk:10x", "none", &["reducer mcm", "needs unbiased", "up=topk:10x"][..]),
        ("mcm:qsgd:4,down=sign", "none", &["reducer mcm", "needs unbiased", "down=sign"]),
        ("mcm:qsgd:4", "error", &["state of its own", "feedback error", "use feedback none"]),
        ("mcm:qsgd:4", "momentum:0.9", &["plain SGD", "feedback momentum", "use feedback none"]),
        ("mcm:qsgd:2,model_alpha=0.9", "none", &["model_alpha 0.9 of mcm", "at most 0."]),
        ("mcm:qsgd:2,alpha=0.9", "none", &["alpha 0.9 of mcm", "at most 0."]),
        ("mcm:qsgd:2,model_alpha=-1", "none", &["model-alpha of mcm", "-1"]),
        ("mcm:qsgd:2,participation=0", "none", &["participation of mcm", "in [0.001, 1]", "got 0"]),
        ("mcm:qsgd:2,server=9", "none", &["server=9", "at least 10 ranks"]),
    ] {
        let error = error(reducer, feedback);
        assert!(words.iter().all(|word| error.contains(word)), "{reducer}: {error}");
    }
}

/// Both step sizes are `1/(2(1 + ω))` by default: ½ without loss. With γ = ½ and (4, 8), `x = γĝ + kept` is sent entirely, and half of it
/// is kept: ½·2 = 1, then ½·(2 + 1) = 1½, then ½·3½ = 1¾ for the first value, twice that for the second. The ranks' memories are ½, ¾ and ⅞
/// of the vector.
#[test]
fn default_step_sizes_by_hand() {
    crate::install();
    let exchange = Exchange { reducer: "mcm:dense,down=dense".parse().unwrap(), ..Exchange::default() };
    let (layout, mut comm) = (Layout::flat(2), Local::world(1).remove(0));
    let mut reducer = exchange.reducer.get().build(&exchange, &layout).unwrap();
    for (step, (kept, memory)) in (0..).zip([(1.0, 0.5), (1.5, 0.75), (1.75, 0.875)]) {
        let agreed_step = &AgreedStep { step, learning_rate: Some(0.5), ..AgreedStep::default() };
        let (input, mut average) = ([4.0, 8.0], [0.0; 2]);
        let (key, slots) = (Key::new(4).step(step), layout.slots());
        let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: None };
        reducer.exchange(round, &mut comm).unwrap();
        reducer.commit();
        let mut state = State::default();
        reducer.save(&mut state);
        assert_eq!(average, input, "step {step}");
        assert_eq!(state.f32s("kept", Some(2)).unwrap(), [kept, 2.0 * kept], "step {step}");
        assert_eq!(state.f32s("memory", Some(2)).unwrap(), [4.0 * memory, 8.0 * memory], "step {step}");
    }
}
