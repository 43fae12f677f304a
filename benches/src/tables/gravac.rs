//! GraVAC's tables 2 and 4: its compressors at fixed ratios, GraVAC over each, and Accordion.

use super::{Model, Row, Table};

/// Its rows, on a link where static top-k 10x spends at least three quarters of a step in the exchange.
pub const TABLE: Table = Table {
    name: "gravac",
    trainer: None,
    models: &Model::ALL,
    rows,
    networks: |model| match model {
        // 50 ms of computing; each rank receives 3 messages of about 4·values/10·1.25 bytes at 10x.
        Model::ResNet8 => vec!["5mbit,1ms"],
        Model::Vgg11Slim => vec!["30mbit,1ms"],
        Model::BiLstm => vec!["80mbit,1ms"],
    },
    compute: "50ms",
    rate: None,
};

/// Compressors, all with 32-bit values.
const COMPRESSORS: [(&str, &str); 4] =
    [("Top-k", "topk"), ("DGC threshold", "threshold-topk"), ("Redsync", "redsync"), ("Random-k", "randk")];

fn rows(model: Model) -> Vec<Row> {
    let mut rows = vec![Row::dense()];
    for (name, compressor) in COMPRESSORS {
        // The other ratios of one compressor, for neighbours of what GraVAC ends with.
        let between = if compressor == "topk" { &[20, 50, 100][..] } else { &[] };
        rows.extend([10].iter().chain(between).chain(&[1000]).map(|ratio| {
            let flags = format!("--compressor {compressor}:{ratio}x --feedback error");
            Row::new(format!("{name} {ratio}x"), flags)
        }));
        let controller = "gravac:10x,max=1000x,epsilon=0.7,window=20";
        let flags = format!("--compressor {compressor}:10x --feedback error --controller {controller}");
        rows.push(Row::new(format!("GraVAC over {name}"), flags).reading_seconds());
    }
    let accordion = "accordion:10x,high=1000x,interval=25,window=25,per_slot=false";
    let flags = format!("--compressor topk:10x --feedback error --controller {accordion}");
    rows.push(Row::new("Accordion 10x/1000x over Top-k", flags));
    // The exchange of `auto` at fixed ratios: 8-bit values, and the feedback that fits the optimizer.
    rows.extend([10, 20, 50].map(|ratio| Row::corrected(&format!("topk:{ratio}x:q8"), model)));
    rows.push(Row::auto());
    rows
}
