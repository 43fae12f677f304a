//! Laws of Briquette's algorithms, checked for these algorithms too.

use briquette::core::Layout;
use briquette::core::aggregate::Mean;
use briquette::core::compress::TopK;
use briquette::core::laws;
use briquette::core::reduce::Gather;
use briquette::core::wrapper::Adaptive;
use custom::{Doubling, FirstBits, WhileItHelps};

#[test]
fn the_compressor_keeps_the_laws() {
    for levels in [1, 3, 127] {
        laws::compressor(&format!("first-bits, {levels} levels"), move || FirstBits::new(levels));
    }
}

#[test]
fn the_controller_keeps_the_laws() {
    let adaptive = |_: &Layout, _| Adaptive::new(Gather::new(TopK::fraction(0.1)?, Mean), WhileItHelps::new(2, 16.0));
    laws::reducer(&laws::OwnReducer::new("while it helps", &adaptive));
}

#[test]
fn the_strategy_keeps_the_laws() {
    laws::strategy(&laws::Own::new("doubling", &|_: &Layout, _| Ok(Doubling::new(4))));
}
