use super::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

#[test]
fn tables_of_the_pages_have_the_numbers_of_the_csvs() {
    let pages = pages(&root().join("docs")).unwrap();
    update(&pages, &root().join("benches/results"), true).unwrap();
}

/// The table of savings in the README is of `auto` and the fastest static row that loses at most half a point, at 100 Mbit/s.
#[test]
fn the_readme_has_the_numbers_of_the_csv() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let lines = read(&root().join("benches/results/never-slower.csv")).unwrap();
    for (model, name) in
        [("resnet8", "ResNet-8, CIFAR-10"), ("vgg11-slim", "slim VGG-11, CIFAR-10"), ("bilstm", "BiLSTM, AG-News")]
    {
        let of = |column: &str, value: &str| {
            let found = lines.iter().filter(|line| line["model"] == model && line["network"] == "100mbit,1ms");
            found.into_iter().find(|line| line[column] == value).unwrap()
        };
        let number = |line: &Line, column: &str| line[column].parse::<f64>().unwrap();
        let seconds = |line: &Line| format!("{:.1} s", number(line, "simulated_seconds"));
        let (dense, auto, best) = (of("row", "dense"), of("row", "auto"), of("times_best_static", "1.0"));
        let points = signed(100.0 * number(auto, "to_dense"));
        let error = 100.0 * number(auto, "standard_error");
        let ratio = number(auto, "wire_ratio");
        let ratio_of_best = best["row"].strip_prefix("topk:").unwrap().split(':').next().unwrap();
        let row = format!(
            "| {name} | {} | {} | {points} ± {error:.1} | {ratio:.0}x | {} (top-k {ratio_of_best}) |",
            seconds(dense),
            seconds(auto),
            seconds(best)
        );
        assert!(readme.contains(&row), "the README has not: {row}");
    }
}

const CSV: &str = "row,lr,searched,test_accuracy,to_dense,standard_error,fewer_bytes,simulated_seconds
dense,0.2,true,0.5,0.0,0.0,1.0,37.26
half,0.1,false,0.48,-0.02,0.004,3128.4,9.0
";

fn of(spec: &str) -> Result<String> {
    let results = tempfile::tempdir()?;
    fs::write(results.path().join("a.csv"), CSV)?;
    updated(&format!("before\n{BEGIN}csv = 'a.csv'\n{spec}\n{OPEN}old{END}\nafter\n"), results.path())
}

#[test]
fn a_table_replaces_the_old_one() {
    let spec = "columns = ['row: strategy', 'lr', 'to_dense', 'fewer_bytes', 'simulated_seconds']\nmark_unsearched = true\nnames.half = 'Half'";
    let page = of(spec).unwrap();
    let table = "| strategy | rate | to dense, points | fewer bytes | simulated time |
|---|---|---|---|---|
| dense | 0.2 | | 1x | 37.3 s |
| Half † | 0.1 | −2.0 ± 0.4 | 3 128x | 9.0 s |
";
    assert_eq!(page, format!("before\n{BEGIN}csv = 'a.csv'\n{spec}\n{OPEN}\n{table}\n{END}\nafter\n"));
    assert!(of("columns = ['row']\nrows = ['half']").unwrap().contains("| row |\n|---|\n| half |\n\n"));
}

#[test]
fn ratios_have_three_digits_or_groups_of_three() {
    let shown = [1.0, 1.02, 4.0, 50.0, 54.53, 99.94, 99.96, 999.6, 1_234_567.0].map(ratio);
    assert_eq!(shown, ["1x", "1.0x", "4.0x", "50x", "54.5x", "99.9x", "100x", "1 000x", "1 234 567x"]);
    assert_eq!(finite(f64::INFINITY, ratio), "–");
}

#[test]
fn what_is_missing_is_named() {
    let said = |spec: &str| format!("{:#}", of(spec).unwrap_err());
    assert!(said("columns = ['colour']").contains("no column colour"));
    assert!(said("columns = ['row']\nrows = ['third']").contains("has no row third"));
    assert!(said("columns = ['row']\nrow = 1").contains("unknown field `row`"));
    assert!(said("columns = ['row']\nnames.third = 'Third'").contains("has no row third"));
    assert!(updated(&format!("{BEGIN}csv = 'a'\n{OPEN}"), Path::new(".")).is_err());
    let without_end = format!("{BEGIN}csv = 'a'\n{OPEN}text\n{BEGIN}csv = 'a'\n{OPEN}{END}");
    assert!(updated(&without_end, Path::new(".")).unwrap_err().to_string().contains("before the next"));
}

const ACROSS: &str = "model,row,accuracy,to_dense,error,seconds
a,dense,0.5,0.0,0.0,4.26
a,\"half, kept\",0.4,-0.1,NaN,2.5
a,half,0.45,-0.05,0.01,2.0
b,dense,0.7,0.0,0.0,8.0
b,\"half, kept\",0.6,-0.1,0.02,inf
";

#[test]
fn a_table_across_a_column_has_cells_for_each_group() {
    let results = tempfile::tempdir().unwrap();
    fs::write(results.path().join("a.csv"), ACROSS).unwrap();
    let of = |spec: &str| {
        let page = format!("{BEGIN}csv = 'a.csv'\n{spec}\n{OPEN}{END}");
        updated(&page, results.path()).map(|page| page.split_once("-->\n\n").unwrap().1.to_owned())
    };
    let across = "columns = ['row']\nacross = 'model'\ngroups = ['a: A', 'b']\ncells = ['{to_dense}, {seconds:1} s', 'accuracy']";
    // A whole name comes before one that goes on after a comma.
    let table = "| row | A | | b | |
|---|---|---|---|---|
| dense | 4.3 s | 0.500 | 8.0 s | 0.700 |
| Half | −5.0 ± 1.0, 2.0 s | 0.450 | −10.0 ± 2.0, – s | 0.600 |
";
    let spec = format!("{across}\nrows = ['dense', 'half']\nnames.half = 'Half'");
    assert_eq!(of(&spec).unwrap(), format!("{table}\n{END}"));
    let flat = of("columns = ['row', 'accuracy']\nkey = 'row'\nwhere.model = 'b'").unwrap();
    assert_eq!(flat, format!("| row | accuracy |\n|---|---|\n| dense | 0.700 |\n| half, kept | 0.600 |\n\n{END}"));
    let other = format!("{}\nrows = ['dense']\nabsent = '–'", across.replace("'b'", "'c'"));
    assert!(of(&other).unwrap().contains("| dense | 4.3 s | 0.500 | – | – |\n"));
    let said = |spec: String| format!("{:#}", of(&spec).unwrap_err());
    assert!(said(across.to_owned()).contains("names its rows"));
    assert!(said(format!("{across}\nrows = ['third']")).contains("no row third"));
    assert!(said(format!("{}\nrows = ['dense']", across.replace("'b'", "'c'"))).contains("no dense with model c"));
    assert!(said("columns = ['{seconds: x']".to_owned()).contains("no }"));
}
