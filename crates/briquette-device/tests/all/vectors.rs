//! Vectors before and after an exchange: sums, feeds, momentum, and products of PowerSGD.

use briquette_core::compress::{HalfKind, random_k::RandomK};
use briquette_core::reduce::{LowRankPlan, Velocity};
use briquette_core::{Key, Layout, Message, math};
use briquette_device::{
    DeviceError, Encoded, Groups, LowRank, Norm, Run, Slots, Terms, Vector, accumulate, feed, first_not_finite, half,
    hard_threshold, min_max, natural, plain_sign, qsgd, random_k, scaled_sign, sent, sums, take_momentum, tern_grad,
    threshold_top_k, top_k,
};

use crate::devices::{normal, runs, same, vectors};

fn bits(sums: &[f64]) -> Vec<u64> {
    sums.iter().map(|sum| sum.to_bits()).collect()
}

#[test]
fn sums_of_slots_have_the_bits_of_f64() {
    for run in &runs() {
        for (name, x) in vectors() {
            // Slots of all lengths, one of several segments.
            let cuts = [0, x.len() / 7, x.len() / 7 + 1.min(x.len() / 2), x.len() / 2, x.len()];
            let slots: Vec<&[f32]> = cuts.windows(2).map(|cut| &x[cut[0]..cut[1].max(cut[0])]).collect();
            let (vector, groups) = (run.upload(&x), Groups::new(run, slots.iter().map(|slot| slot.len())));
            let energies = sums(run, &vector, &groups, Terms::Squares).read(run).unwrap();
            assert_eq!(bits(&energies), bits(&slots.iter().map(|x| math::norm2(x)).collect::<Vec<_>>()), "{name}");
            let norms = sums(run, &vector, &groups, Terms::Magnitudes).read(run).unwrap();
            assert_eq!(bits(&norms), bits(&slots.iter().map(|x| math::norm1(x)).collect::<Vec<_>>()), "{name}");
            let totals = sums(run, &vector, &groups, Terms::Values).read(run).unwrap();
            assert_eq!(bits(&totals), bits(&slots.iter().map(|x| math::total(x)).collect::<Vec<_>>()), "{name}");
        }
    }
}

#[test]
fn statistics_of_what_was_sent_have_the_bits_of_f64() {
    for run in &runs() {
        for (name, x) in vectors() {
            let (vector, cuts) = (run.upload(&x), [0, x.len() / 3, x.len()]);
            let lengths: Vec<usize> = cuts.windows(2).map(|cut| cut[1] - cut[0]).collect();
            let slots = Slots::new(run, lengths);
            let mut message = Message::default();
            for encoded in
                [min_max(run, &vector, 100), half(run, &vector, HalfKind::Bf16), scaled_sign(run, &vector, None)]
            {
                let decoded = encoded.read(run, &mut message).unwrap().decode(run);
                let mut host = vec![0.0; x.len()];
                message.decode_into(&mut host).unwrap();
                let expected = cuts.windows(2).map(|cut| {
                    let mut kept = math::SentStatistics::default();
                    let (mut x, sent) = (x[cut[0]..cut[1]].to_vec(), &host[cut[0]..cut[1]]);
                    // The blocks in which core decodes a message.
                    x.chunks_mut(1024)
                        .zip(sent.chunks(1024))
                        .for_each(|(x, sent)| assert!(math::subtract_sent(x, sent, &mut kept)));
                    (kept.energy.to_bits(), kept.values)
                });
                let on_device = sent(run, &vector, &decoded, &slots).read(run).unwrap();
                let on_device: Vec<(u64, usize)> =
                    on_device.iter().map(|(energy, count)| (energy.to_bits(), *count)).collect();
                assert_eq!(on_device, expected.collect::<Vec<_>>(), "{name}, {run:?}");
            }
        }
    }
}

#[test]
fn values_that_are_not_finite_are_found_and_refused() {
    for run in &runs() {
        for (at, bad) in [(0, f32::NAN), (4097, f32::INFINITY), (8999, f32::NEG_INFINITY)] {
            let mut x = normal(9000, 1.0);
            let groups = Groups::new(run, [4096, 4904]);
            assert_eq!(first_not_finite(run, &run.upload(&x)).unwrap(), None);
            x[at] = bad;
            let vector = run.upload(&x);
            assert_eq!(first_not_finite(run, &vector).unwrap(), Some(at));
            let energies = sums(run, &vector, &groups, Terms::Squares).read(run).unwrap();
            assert_eq!(energies.iter().map(|energy| energy.is_finite()).collect::<Vec<_>>(), [at >= 4096, at < 4096]);
            let mut message = Message::default();
            for encoded in [top_k(run, &vector, 10), hard_threshold(run, &vector, 0.5, 10), min_max(run, &vector, 256)]
            {
                let error = encoded.read(run, &mut message).unwrap_err();
                assert!(matches!(error, DeviceError::Message(_)), "{error}");
            }
        }
    }
}

#[test]
fn feeding_gathers_tensors_and_has_the_bits_of_core() {
    for run in &runs() {
        let (parts, residual) = ([normal(5000, 1.0), normal(1, 1.0), normal(4097, 1.0)], normal(9098, 0.3));
        for weight in [1.0, 0.3, 0.0] {
            let (waiting, fed) = (run.upload(&residual), run.upload(&parts.concat()));
            let mut start = 0;
            for part in &parts {
                feed(run, &fed, &waiting, weight, start..start + part.len());
                start += part.len();
            }
            let mut host = vec![0.0; 9098];
            math::add_scaled(&residual, weight, &parts.concat(), &mut host);
            assert!(same(run, &run.read(&fed).unwrap(), &host), "{weight}");
        }
    }
}

#[test]
fn velocities_have_the_bits_of_core() {
    for run in &runs() {
        let [gradient, u, v] = [5001, 5002, 5003].map(|len| normal(len, 0.7)[..5001].to_vec());
        for (momentum, nesterov, scale) in [(0.9, false, 1.0), (0.9, true, 1.0), (0.3, false, 0.77), (0.3, true, 0.77)]
        {
            let on_device = [&gradient, &u, &v, &u].map(|vector| run.upload(vector));
            let [left, before, waiting, next] = &on_device;
            let settings = Velocity { momentum, nesterov, scale };
            for range in [0..4100, 4100..gradient.len()] {
                accumulate(run, left, settings, [before, next], waiting, range);
            }
            let mut host = (vec![0.0; u.len()], vec![0.0; v.len()]);
            settings.accumulate(&gradient, [&u, &v], [&mut host.0, &mut host.1]);
            assert!(same(run, &run.read(next).unwrap(), &host.0), "velocity, {settings:?}");
            assert!(same(run, &run.read(left).unwrap(), &host.1), "pending, {settings:?}");
        }
        let [average, before, next] = [&gradient, &u, &v].map(|vector| run.upload(vector));
        take_momentum(run, &average, [&before, &next], 0.9);
        let (mut host, mut agreed) = (gradient.clone(), vec![0.0; u.len()]);
        assert!(math::subtract_velocity(&mut host, &u, &mut agreed, 0.9));
        assert!(same(run, &run.read(&average).unwrap(), &host) && same(run, &run.read(&next).unwrap(), &agreed));
    }
}

/// Products in core's order: sixteen lanes that are added in pairs, rows in order, factors' columns in order.
#[test]
fn products_of_power_sgd_have_the_order_of_core() {
    for (run, rank) in runs().iter().flat_map(|run| [1, 2, 3, 5].map(|rank| (run, rank))) {
        // Two matrices with a vector between them, and a matrix that no factors shorten.
        let layout = Layout::new([("a", vec![37, 70]), ("bias", vec![11]), ("b", vec![12, 17]), ("c", vec![2, 2])]);
        let (x, plan) = (normal(layout.len(), 0.3), LowRankPlan::new(layout.slots(), rank));
        assert_eq!((plan.matrices().len(), plan.dense_len()), (2, 15));
        let (q, p) = (normal(plan.right_len(), 1.0), normal(plan.left_len(), 1.0));
        let (mut left, mut right, mut whole) = (vec![0.0; p.len()], vec![0.0; q.len()], vec![7.0; x.len()]);
        for matrix in plan.matrices() {
            let (m, rows, columns) = (&x[matrix.range.clone()], matrix.rows, matrix.cols);
            let (p, q) = (&p[matrix.left.clone()], &q[matrix.right.clone()]);
            for (i, c) in (0..rows).flat_map(|i| (0..rank).map(move |c| (i, c))) {
                let mut lanes = [0.0_f32; 16];
                (0..columns).for_each(|j| lanes[j % 16] += m[i * columns + j] * q[j * rank + c]);
                let eight: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
                let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
                left[matrix.left.start + i * rank + c] = (four[0] + four[2]) + (four[1] + four[3]);
            }
            for (j, c) in (0..columns).flat_map(|j| (0..rank).map(move |c| (j, c))) {
                right[matrix.right.start + j * rank + c] =
                    (0..rows).fold(0.0, |sum, i| sum + m[i * columns + j] * p[i * rank + c]);
            }
            for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
                whole[matrix.range.start + i * columns + j] =
                    (0..rank).fold(-0.0, |sum, c| sum + p[i * rank + c] * q[j * rank + c]);
            }
        }
        let (tables, vector) = (LowRank::new(run, &plan), run.upload(&x));
        let out = run.upload(&vec![7.0; x.len()]);
        let (on_q, on_p) = (run.upload(&q), run.upload(&p));
        tables.expand(run, &on_p, &on_q, &out);
        assert!(same(run, &run.read(&tables.left(run, &vector, &on_q)).unwrap(), &left), "P, rank {rank}");
        assert!(same(run, &run.read(&tables.right(run, &vector, &on_p)).unwrap(), &right), "Q, rank {rank}");
        assert!(same(run, &run.read(&out).unwrap(), &whole), "the product, rank {rank}");
    }
}

#[test]
fn parts_of_a_vector_are_read_from_any_place() {
    for run in &runs() {
        let x = normal(9000, 1.0);
        let vector = run.upload(&x);
        for range in [0..9000, 0..10, 64..200, 4096..9000, 77..4200, 5..5, 9000..9000] {
            assert!(same(run, &run.read(&run.part(&vector, range.clone())).unwrap(), &x[range]));
        }
    }
}

/// Launches, waits, and bytes down and up for 140 000 values, of which top-k keeps 1 %.
#[test]
fn only_the_message_crosses_the_bus_in_one_wait() {
    type Encode = fn(&Run, &Vector) -> Encoded;
    let len = 140_000;
    let encoders: [(&str, usize, Encode); 13] = [
        ("top-k", 1, |run, x| top_k(run, x, x.len() / 100)),
        ("hard threshold", 1, |run, x| hard_threshold(run, x, 2.6, x.len() / 50)),
        ("threshold top-k", 2, |run, x| threshold_top_k(run, x, x.len() / 100, 0.01, Key::new(1)).unwrap()),
        ("random-k", 1, |run, x| random_k(run, x, RandomK::fraction(0.01).unwrap(), Key::new(1))),
        ("min-max", 1, |run, x| min_max(run, x, 256)),
        ("f16", 1, |run, x| half(run, x, HalfKind::F16)),
        ("bf16", 1, |run, x| half(run, x, HalfKind::Bf16)),
        ("qsgd", 1, |run, x| qsgd(run, x, (7, 512), Norm::Max, Key::new(1)).unwrap()),
        ("qsgd l2", 2, |run, x| qsgd(run, x, (7, 512), Norm::L2, Key::new(1)).unwrap()),
        ("natural", 1, |run, x| natural(run, x, Key::new(1))),
        ("terngrad", 2, |run, x| tern_grad(run, x, Some(2.5), Key::new(1)).unwrap()),
        ("scaled sign", 1, |run, x| scaled_sign(run, x, None)),
        ("plain sign", 1, |run, x| plain_sign(run, x, None)),
    ];
    for run in &runs() {
        let (vector, mut message) = (run.upload(&normal(len, 1.0)), Message::default());
        for (name, waits, encode) in encoders {
            let before = run.work();
            encode(run, &vector).read(run, &mut message).unwrap();
            let after = run.work();
            let [launches, down, up] =
                [after.launches - before.launches, after.down - before.down, after.up - before.up];
            println!(
                "{name}: {launches} launches, {down} bytes down, {up} up, {} in the message",
                message.encoded_len()
            );
            assert_eq!(after.waits - before.waits, waits, "{name}");
            assert!(launches <= 10, "{name}: {launches} launches");
            // A kept value is an index and a value; core codes indices in fewer bits.
            assert!(down <= 2 * message.encoded_len() + len / 8 && 10 * up <= 4 * len, "{name}: {down} down, {up} up");
        }
    }
}

#[test]
fn devices_pass_their_own_test() {
    runs().iter().for_each(|run: &Run| run.check().unwrap());
}

#[test]
fn messages_of_slots_are_applied_in_their_places() {
    for run in &runs() {
        let x = normal(9000, 1.0);
        let (vector, average) = (run.upload(&x), run.zeros(9000));
        let (mut host, mut left, mut message) = (vec![0.0; 9000], x.clone(), Message::default());
        for range in [0..77, 77..4200, 4200..9000] {
            let part = run.part(&vector, range.clone());
            for encoded in [min_max(run, &part, 256), top_k(run, &part, 40)] {
                let on_device = encoded.read(run, &mut message).unwrap();
                on_device.add(run, 0.5, &average, range.start);
                message.add_to(0.5, &mut host[range.clone()]).unwrap();
                let mut sent = vec![0.0; range.len()];
                message.decode_into(&mut sent).unwrap();
                left[range.clone()].iter_mut().zip(sent).for_each(|(left, sent)| *left -= sent);
                on_device.subtract(run, &vector, range.start);
            }
        }
        assert!(same(run, &run.read(&average).unwrap(), &host) && same(run, &run.read(&vector).unwrap(), &left));
    }
}
