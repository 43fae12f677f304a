//! Never-slower table: static ratios and controllers on four networks.

use super::{Model, Row, Table};

/// Eight static rows and Accordion, replayed; `auto` and GraVAC, run on each network.
pub const TABLE: Table = Table {
    name: "never-slower",
    trainer: None,
    models: &Model::ALL,
    rows,
    networks: |_| vec!["100mbit,1ms", "1gbit,50us", "10gbit,20us", "unlimited"],
    compute: "50ms",
    rate: None,
};

/// Ratios at equal value codes.
const RATIOS: [u32; 5] = [5, 10, 20, 50, 100];

fn rows(model: Model) -> Vec<Row> {
    let memory = if model.is_adam() { "--feedback error" } else { "--momentum-correction on" };
    let ring = |wire: &str| Row::new(format!("ring {wire}"), format!("--reducer ring:{wire} --feedback none"));
    let mut rows = vec![Row::dense(), ring("bf16"), ring("int8")];
    rows.extend(RATIOS.map(|ratio| Row::corrected(&format!("topk:{ratio}x:q8"), model)));
    let accordion = "accordion:10x,high=100x,interval=25,window=25,per_slot=false";
    rows.push(Row::new("Accordion 10x/100x q8", format!("--compressor topk:10x:q8 {memory} --controller {accordion}")));
    let gravac = "gravac:10x,max=100x,epsilon=0.4,window=25";
    let gravac = format!("--compressor topk:10x:q8 {memory} --controller {gravac}");
    rows.push(Row::new("GraVAC 0.4 q8", gravac).reading_seconds());
    rows.push(Row::auto());
    rows
}
