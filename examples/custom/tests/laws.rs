//! Laws of Briquette's algorithms, checked for these algorithms too.

use briquette::core::config::{Config, Exchange, exchanges, representatives};
use briquette::core::laws;
use custom::{Doubling, EveryNth, FirstBits, WhileItHelps, catalogue};

#[test]
fn the_compressor_keeps_the_laws() {
    for levels in [1, 3, 127] {
        laws::compressor(&format!("first-bits, {levels} levels"), move || FirstBits::new(levels));
    }
}

/// Representatives in which an algorithm of this crate takes part, alone and with Briquette's.
fn own() -> (Vec<Config>, Vec<Exchange>) {
    catalogue().unwrap().scope(|| {
        let compresses = |exchange: &Exchange| {
            exchange.reducer.get().compressor().is_some_and(|it| it.compressor().is::<FirstBits>())
        };
        let is_own = |exchange: &Exchange| {
            exchange.controller.is::<WhileItHelps>() || exchange.reducer.is::<EveryNth>() || compresses(exchange)
        };
        let with_own = |config: &Config| config.strategy.is::<Doubling>();
        (representatives().into_iter().filter(with_own).collect(), exchanges().into_iter().filter(is_own).collect())
    })
}

#[test]
fn what_the_catalogue_lists_keeps_the_laws() {
    let (configs, exchanges) = own();
    assert_eq!(configs.len(), 1, "one representative of the strategy");
    assert!(exchanges.len() > 5, "the reducer, and the controller under every feedback: {}", exchanges.len());
    for config in configs {
        laws::strategy(&config);
    }
    for exchange in exchanges {
        laws::reducer(&exchange);
    }
}
