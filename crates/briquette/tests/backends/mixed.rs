//! Ranks on two backends in one world.

use briquette::core::config::Config;
use briquette::{DistributedOptimizer, REBROADCAST_STEPS};
use burn::tensor::Device;

use crate::facts::{adam, data, flex, ranks};
use crate::models::{Mlp, Model, ResNet, bits, distance, values};

const EVERY: u64 = 3;

/// Rank 0 on this device, rank 1 on flex.
pub(crate) fn ranks_on_two_backends_agree(device: &Device) {
    let told = ranks(2, |comm| {
        let rank = comm.rank();
        let device = if rank == 0 { device.clone() } else { flex() };
        let mut optim = DistributedOptimizer::new(adam(), comm, Config::top_k(0.3)?, 1).with_rebroadcast(EVERY);
        let mut model = optim.join(ResNet::new(rank as u64, &device))?;
        let first = model.gradients(data(0, 7), 4, &device);
        let gradient = optim.synchronizer().flat_gradient(&model, &first)?;
        let (mut averages, mut replicas, mut drifts) = (Vec::new(), Vec::new(), Vec::new());
        for step in 0..2 * EVERY {
            let gradients = model.gradients(data(step, rank), 4, &device);
            let average = optim.sync_gradients(&model, gradients)?;
            averages.push(optim.synchronizer().flat_gradient(&model, &average)?);
            model = optim.inner_mut().step(0.01, model, average);
            model = optim.sync_parameters(model)?;
            replicas.push(values(&optim.synchronizer_mut().average_buffers(model.clone())?));
            drifts.push(optim.report().drift);
        }
        Ok((gradient, averages, replicas, drifts))
    });
    let [(gradient, averages, replicas, drifts), (theirs, their_averages, their_replicas, their_drifts)] = &told[..]
    else {
        panic!("two ranks")
    };
    let largest = theirs.iter().fold(0.0, |m: f32, v| m.max(v.abs()));
    assert!(distance(gradient, theirs) <= 1e-4 * largest, "gradients of the same samples");
    assert_eq!(drifts, their_drifts, "every rank is told the largest drift");
    for step in 0..2 * EVERY as usize {
        assert_eq!(bits(&averages[step]), bits(&their_averages[step]), "the average of step {step}");
        let again = (step as u64 + 1).is_multiple_of(EVERY);
        assert_eq!(drifts[step].is_some(), again, "step {step}");
        let apart = distance(&replicas[step], &their_replicas[step]);
        assert!(apart <= if again { 0.0 } else { 1e-5 }, "step {step}: {apart}");
    }
    assert!(drifts.iter().flatten().all(|drift| (0.0..1e-5).contains(drift)), "{drifts:?}");
}

/// By default, a world of one device never re-broadcasts, and one whose replicas would drift apart does.
pub(crate) fn rounding_is_compared_on_joining(device: &Device) {
    let join = |other: &Device, told: Option<u64>| {
        ranks(2, |comm| {
            let device = if comm.rank() == 0 { device } else { other };
            let mut optim = DistributedOptimizer::new(adam(), comm, Config::dense(), 1);
            if let Some(steps) = told {
                optim = optim.with_rebroadcast(steps);
            }
            let mut model = optim.join(Mlp::new(1, device))?;
            for step in 0..20 {
                // The averages have the same bits, however gradients round.
                let gradients = model.gradients(data(step, 0), 4, device);
                model = optim.step(0.01, model, gradients)?;
            }
            Ok((optim.synchronizer().rebroadcast_steps()?, bits(&values(&model))))
        })
    };
    assert!(join(device, None).iter().all(|rank| rank.0 == 0), "one device rounds in one way");
    let alone = join(&flex(), Some(0));
    let drifts = alone[0].1 != alone[1].1;
    let told: Vec<u64> = join(&flex(), None).into_iter().map(|rank| rank.0).collect();
    assert!(told == [REBROADCAST_STEPS; 2] || (told == [0, 0] && !drifts), "{told:?}, drifts: {drifts}");
    println!("beside flex: replicas drift: {drifts}, re-broadcast every {} steps", told[0]);
}
