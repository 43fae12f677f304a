use super::*;
use crate::Layout;
use crate::aggregate::mean::Mean;
use crate::comm::{Local, run_ranks};
use crate::compress::{random_k::RandomK, top_k::TopK};
use crate::seam::AgreedStep;
use crate::seam::Ratios;

/// Each keeps 32 of 64 values. If they were the same, the mean would have no more than these.
#[test]
fn ranks_draw_numbers_of_their_own() {
    let ranks = run_ranks(Local::world(2), |mut comm| {
        let (layout, agreed_step, mut average) = (Layout::flat(64), AgreedStep::default(), vec![0.0; 64]);
        let (key, slots, input) = (Key::new(2), layout.slots(), [1.0; 64]);
        let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
        Gather::new(RandomK::fraction(0.5).unwrap(), Mean).reduce(round, &mut comm)?;
        Ok::<_, ReduceError>(average.iter().filter(|value| **value != 0.0).count())
    });
    let counts: Vec<usize> = ranks.into_iter().map(Result::unwrap).collect();
    assert!(counts[0] > 36 && counts == [counts[0]; 2], "{counts:?}");
}

/// 8 values at 2x and 24 at 4x: 4 + 6 of 32 are sent, which is 3.2x.
#[test]
fn the_ratio_of_all_slots_is_by_what_is_sent_by_hand() {
    let (layout, agreed_step, mut average) =
        (Layout::new([("a", vec![8]), ("b", vec![24])]), AgreedStep::default(), vec![0.0; 32]);
    let mut gather = Gather::new(TopK::fraction(0.1).unwrap(), Mean).grain(Grain::PerSlot);
    gather.set(Ratios::PerSlot(&[2.0, 4.0].map(CompressionRatio::constant)));
    let (key, slots, input) = (Key::new(2), layout.slots(), [1.0; 32]);
    let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
    gather.reduce(round, &mut Local::world(1).remove(0)).unwrap();
    let mut report = Report::default();
    gather.report(&mut report);
    assert_eq!(report.ratio.map(CompressionRatio::get), Some(3.2));
    assert_eq!(average.iter().filter(|value| **value != 0.0).count(), 10);
}
