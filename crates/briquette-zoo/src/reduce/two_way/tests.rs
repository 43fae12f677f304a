use super::*;
use briquette_core::Layout;
use briquette_core::comm::Local;
use briquette_core::config::{CompressorConfig, Exchange};
use briquette_core::reduce::AgreedStep;
use briquette_core::state::State;

fn exchange(reducer: &str) -> Exchange {
    Exchange { reducer: reducer.parse().unwrap(), dense_below: Some(0), ..Exchange::default() }
}

fn input(rank: usize, step: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 5 + rank * 3) as f32 * 0.83 + step as f32 * 0.4).sin() * (1.0 + rank as f32)).collect()
}

/// Returns by rank and step: the average, the contribution, and the residual.
fn run(exchange: &Exchange, layout: &Layout, world: usize, steps: u64) -> Vec<Vec<[Vec<f32>; 3]>> {
    let ranks = Local::run(world, |mut comm| {
        let (mut reducer, rank, len) = (exchange.build_reducer(layout, world).unwrap(), comm.rank(), layout.len());
        (0..steps)
            .map(|step| {
                let (mut average, mut sent, mut state) = (vec![9.0; len], vec![9.0; len], State::default());
                let agreed_step = &AgreedStep { step, ..AgreedStep::default() };
                let (key, slots, input) = (Key::new(4).step(step), layout.slots(), &input(rank, step, len)[..]);
                let round = Round { key, slots, agreed_step, input, average: &mut average, sent: Some(&mut sent) };
                reducer.exchange(round, &mut comm)?;
                reducer.save(&mut state);
                let kept = state.iter().find(|(name, _)| name.ends_with("kept"));
                let kept = kept.map_or_else(Vec::new, |(name, _)| state.f32s(name, None).unwrap().to_vec());
                Ok([average, sent, kept])
            })
            .collect::<Result<Vec<_>, ReduceError>>()
    });
    ranks.into_iter().map(Result::unwrap).collect()
}

/// Returns `x` compressed and decoded.
fn lossy(compressor: &CompressorConfig, x: &[f32], key: Key) -> Vec<f32> {
    let (mut message, mut out) = (Message::default(), vec![0.0; x.len()]);
    compressor.build().compress_into(x, key, &mut message);
    message.decode_into(&mut out).unwrap();
    out
}

#[test]
fn scaled_signs_both_ways_by_hand() {
    crate::install();
    // Two ranks with (3, −1, 2, 0) and (1, 1, −4, 2), shares (0, 1) and (2, 3). Up: rank 0 sends (2, −2) and (1, 1); rank 1 (1, 1) and
    // (−3, 3). Means: (1.5, −0.5) and (−1, 2). Down: (1, −1) and (−1.5, 1.5); kept: (0.5, 0.5) and (0.5, 0.5).
    let exchange = exchange("two-way:sign,down=sign");
    let layout = Layout::flat(4);
    let ranks = Local::run(2, |mut comm| {
        let input = [[3.0, -1.0, 2.0, 0.0], [1.0, 1.0, -4.0, 2.0]][comm.rank()];
        // Without a meter and error feedback of the rank around it.
        let mut reducer = exchange.reducer.get().build(&exchange, &layout).unwrap();
        let (mut average, mut sent, mut state) = ([9.0; 4], [9.0; 4], State::default());
        let (key, slots, agreed_step) = (Key::new(0), layout.slots(), &AgreedStep::default());
        let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: Some(&mut sent) };
        let exchanged = reducer.exchange(round, &mut comm)?;
        reducer.save(&mut state);
        Ok::<_, ReduceError>((average, sent, state.f32s("kept", None).unwrap().to_vec(), exchanged.traffic.sent))
    });
    // One message of two signs each way: its length, a header with a checksum, a scale, a byte.
    let bytes = 2 * (4 + 16 + 4 + 1);
    let [first, second] = [0, 1].map(|rank| ranks[rank].as_ref().unwrap().clone());
    assert_eq!(first, ([1.0, -1.0, -1.5, 1.5], [2.0, -2.0, 1.0, 1.0], vec![0.5, 0.5], first.3));
    assert_eq!(second, ([1.0, -1.0, -1.5, 1.5], [1.0, 1.0, -3.0, 3.0], vec![0.5, 0.5], first.3));
    assert_eq!(first.3, bytes);
}

/// Simulates ranks and servers in one place, with dense vectors. Each share has a residual if the downlink compressor is contractive, and
/// is compressed separately with a separate key.
fn twin(up: &CompressorConfig, down: &CompressorConfig, world: usize, len: usize, steps: u64) -> Vec<Vec<f32>> {
    let mut kept = vec![0.0_f32; len];
    let mut averages = Vec::new();
    for step in 0..steps {
        let mut average = vec![0.0; len];
        // The vector is the only bucket.
        let key = Key::new(4).step(step).bucket(0);
        for (index, share) in (0..world).map(|share| share * len / world..(share + 1) * len / world).enumerate() {
            // A share without values has no message.
            let part = index - (0..index).filter(|i| i * len / world == (i + 1) * len / world).count();
            let mut x = vec![0.0; share.len()];
            for rank in 0..world {
                let sent = lossy(up, &input(rank, step, len)[share.clone()], key.rank(rank).bucket(part));
                x.iter_mut().zip(sent).for_each(|(x, sent)| *x += sent);
            }
            x.iter_mut().for_each(|x| *x *= 1.0 / world as f32);
            x.iter_mut().zip(&kept[share.clone()]).for_each(|(x, kept)| *x += kept);
            let sent = lossy(down, &x, key.purpose("down").bucket(part));
            for ((at, x), sent) in share.clone().zip(x).zip(sent) {
                (average[at], kept[at]) = (sent, if down.needs_feedback() { x - sent } else { 0.0 });
            }
        }
        averages.push(average);
    }
    averages
}

#[test]
fn averages_are_those_of_a_simulation_in_one_place_to_the_bit_whoever_serves() {
    crate::install();
    for (up, down) in [("sign", "sign"), ("topk:3x", "topk:3x"), ("dense", "sign"), ("qsgd:3:8:l2", "qsgd:3:8:l2")] {
        let (up_config, down_config) = (up.parse().unwrap(), down.parse().unwrap());
        for len in [1, 2, 23] {
            let expected = twin(&up_config, &down_config, 3, len, 5);
            for server in ["", ",server=0", ",server=2"] {
                let exchange = exchange(&format!("two-way:{up},down={down}{server}"));
                for (rank, steps) in run(&exchange, &Layout::flat(len), 3, 5).into_iter().enumerate() {
                    let averages: Vec<Vec<f32>> = steps.into_iter().map(|[average, ..]| average).collect();
                    assert_eq!(averages, expected, "{up}, {down}{server}, {len} values, rank {rank}");
                }
            }
        }
    }
}

#[test]
fn what_servers_do_not_send_they_keep() {
    crate::install();
    // Law 3 of the downlink: Σ average + kept = Σ mean of sent.
    let layout = Layout::new([("a", vec![7]), ("b", vec![3, 4]), ("c", vec![1])]);
    for reducer in [
        "two-way:sign,per_slot=true",
        "two-way:topk:4x,down=topk:4x,rounds=2",
        "two-way:sign,server=1",
        "two-way:sign,down=qsgd:4,rounds=2,server_memory=true",
    ] {
        let ranks = run(&exchange(reducer), &layout, 3, 8);
        let mut sums = vec![[0.0_f64; 2]; layout.len()];
        for step in 0..8 {
            for (i, sum) in sums.iter_mut().enumerate() {
                sum[0] += f64::from(ranks[0][step][0][i]);
                sum[1] += ranks.iter().map(|rank| f64::from(rank[step][1][i])).sum::<f64>() / 3.0;
            }
            let kept: Vec<f32> = ranks.iter().flat_map(|rank| rank[step][2].clone()).collect();
            assert_eq!(kept.len(), layout.len(), "{reducer}");
            for (i, ([average, mean], kept)) in sums.iter().zip(&kept).enumerate() {
                let off = (average + f64::from(*kept) - mean).abs();
                assert!(off < 1e-4, "{reducer}, step {step}, value {i}: off by {off}");
            }
        }
        assert!(ranks.iter().any(|rank| rank[7][2].iter().any(|kept| kept.abs() > 1e-4)), "{reducer}: keeps nothing");
        let served = ranks.iter().map(|rank| rank[7][2].len()).collect::<Vec<_>>();
        // Twenty values.
        assert_eq!(served, if reducer.contains("server=1") { [0, 20, 0] } else { [6, 7, 7] }, "{reducer}");
    }
}

#[test]
fn rounds_of_top_k_are_one_of_as_many_values_and_without_loss_down_a_mean_of_them() {
    crate::install();
    let layout = Layout::flat(24);
    let of = |reducer: &str| run(&exchange(reducer), &layout, 2, 1)[0][0][0].clone();
    // Twelve values per share: two rounds of three equal one round of six.
    assert_eq!(of("two-way:topk:4x,down=dense,rounds=2"), of("two-way:topk:2x,down=dense"));
    let gathered = of("gather:topk:2x");
    let mean: Vec<f32> = (0..24).map(|i| (input(0, 0, 24)[i] + input(1, 0, 24)[i]) / 2.0).collect();
    let distance = |x: &[f32]| x.iter().zip(&mean).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
    let [one, four] = ["two-way:sign,rounds=1", "two-way:sign,rounds=4"].map(|reducer| distance(&of(reducer)));
    assert!(four < 0.5 * one, "one round is off by {one}, four by {four}, a gather of half by {}", distance(&gathered));
}

#[test]
fn a_vote_is_the_median_of_signs_and_half_minus_one_inverted_ranks_change_nothing_that_all_others_agree_on() {
    crate::install();
    let voted = |world: usize, inverted: usize, gradient: &(dyn Fn(usize, usize) -> f32 + Sync)| {
        let exchange = exchange("two-way:plain-sign,down=plain-sign");
        let layout = Layout::flat(31);
        let votes = Local::run(world, |mut comm| {
            let sign = if comm.rank() < inverted { -1.0 } else { 1.0 };
            let input: Vec<f32> = (0..31).map(|i| sign * gradient(comm.rank(), i)).collect();
            let (mut reducer, mut average) = (exchange.build_reducer(&layout, world).unwrap(), vec![0.0; 31]);
            let (key, slots, agreed_step) = (Key::new(0), layout.slots(), &AgreedStep::default());
            let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: None };
            reducer.exchange(round, &mut comm).map(|_| average)
        });
        votes.into_iter().next().unwrap().unwrap()
    };
    let differ = |rank: usize, i: usize| input(rank, 0, 31)[i];
    for (i, vote) in voted(5, 0, &differ).into_iter().enumerate() {
        let ups = (0..5).filter(|rank| differ(*rank, i) >= 0.0).count();
        assert_eq!(vote, if ups >= 3 { 1.0 } else { -1.0 }, "value {i}");
    }
    // Of six, three against three is a tie, which counts as positive, or is drawn.
    assert_eq!(voted(6, 3, &|_, i| i as f32 - 14.5), vec![1.0; 31]);
    let agree = |rank: usize, i: usize| (1.0 + rank as f32) * (i as f32 - 14.5);
    let expected: Vec<f32> = (0..31).map(|i| (i as f32 - 14.5).signum()).collect();
    assert_eq!(voted(5, 2, &agree), expected);
    assert_ne!(voted(5, 3, &agree), expected);
}

#[test]
fn a_vote_is_one_bit_a_value_each_way() {
    crate::install();
    // Four shares of 160 values: 20 bytes to each of three servers and back, after a length, a header and a scale (1).
    let exchange = exchange("two-way:plain-sign,down=plain-sign");
    let layout = Layout::flat(640);
    let sent = Local::run(4, |mut comm| {
        let input: Vec<f32> = input(comm.rank(), 0, 640);
        let (mut reducer, mut average) = (exchange.reducer.get().build(&exchange, &layout).unwrap(), vec![0.0; 640]);
        let (key, slots, agreed_step) = (Key::new(0), layout.slots(), &AgreedStep::default());
        let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: None };
        reducer.exchange(round, &mut comm).map(|exchanged| exchanged.traffic.sent)
    });
    assert!(sent.iter().all(|sent| *sent.as_ref().unwrap() == 2 * 3 * (4 + 16 + 4 + 160 / 8)), "{sent:?}");
}

#[test]
fn a_median_at_the_servers_excludes_what_is_not_finite_and_names_it_on_every_rank() {
    crate::install();
    let exchange = Exchange { aggregator: "median".parse().unwrap(), ..exchange("two-way:dense,down=dense") };
    let layout = Layout::flat(5);
    let ranks = Local::run(5, |mut comm| {
        let own = if comm.rank() == 1 { f32::NAN } else { comm.rank() as f32 };
        let mut reducer = exchange.reducer.get().build(&exchange, &layout).unwrap();
        let (mut average, mut report) = (vec![9.0; 5], Report::default());
        let (key, slots, agreed_step) = (Key::new(0), layout.slots(), &AgreedStep::default());
        let round = Round { key, slots, agreed_step, input: &[own; 5], average: &mut average, sent: None };
        reducer.exchange(round, &mut comm)?;
        reducer.report(&mut report);
        Ok::<_, ReduceError>((average, report.excluded))
    });
    let [first, rest @ ..] = &ranks.into_iter().map(Result::unwrap).collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!(first.1, [1]);
    // Of 0, 2, 3 and 4.
    assert_eq!(first.0, [2.5; 5]);
    assert!(rest.iter().all(|rank| rank == first));
}

#[test]
fn impossible_settings_name_what_is_wrong_before_any_rank_talks() {
    crate::install();
    for (reducer, feedback, aggregator, words) in [
        ("two-way:sign,server=4", "error", "mean", &["server=4", "a world of 4 ranks: it needs at least 5 ranks"][..]),
        ("two-way:qsgd:8,down=qsgd:8", "diana", "mean", &["feedback diana", "reducer artemis"]),
        ("two-way:sign", "error", "krum:0", &["aggregator krum", "a share of each"]),
        ("two-way:sign,rounds=2", "error", "median", &["aggregator median", "rounds=1"]),
        (
            "two-way:sign,down=plain-sign,server_memory=true",
            "error",
            "mean",
            &["plain-sign", "not contractive", "server_memory=false"],
        ),
        ("two-way:plain-sign,down=plain-sign", "error", "mean", &["not contractive", "feedback none"]),
    ] {
        let mut exchange = exchange(reducer);
        (exchange.feedback, exchange.aggregator) = (feedback.parse().unwrap(), aggregator.parse().unwrap());
        let error = exchange.build_reducer(&Layout::flat(100), 4).map(drop).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{reducer}: {error}");
    }
    for rounds in [0, 1001] {
        let settings = TwoWayConfig { rounds, ..TwoWayConfig::default() };
        let exchange = Exchange { reducer: settings.into(), ..Exchange::default() };
        let error = exchange.build_reducer(&Layout::flat(100), 4).map(drop).unwrap_err().to_string();
        assert_eq!(error, format!("rounds of two-way must be 1 to 1000, got {rounds}"));
    }
}

#[test]
fn what_stands_behind_a_servers_last_message_is_refused_with_its_number() {
    assert_eq!(Downlink::end(&vec![0; 5], 5, 2), Ok(()));
    let error = Downlink::end(&vec![0; 5], 3, 2).unwrap_err().to_string();
    assert!(error.contains("rank 2") && error.contains("2 bytes too many"), "{error}");
}
