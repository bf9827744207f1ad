//! Tests of every format: valid files, invalid rows, and files truncated at every byte.

use std::io::Write;

use proptest::prelude::*;
use units::Bytes;

use super::lifetimes::Lifetimes;
use super::sink::BAD_ROWS_REPORTED;
use super::*;
use crate::read::Trace;
use crate::vm::{Recorded, Vm};

const GB: u64 = 1 << 30;

const FLAVOURS: &str = "arrival_s,batch,flavor,cores,memory_gb,censored,dur_bin,dur_lo_s,dur_hi_s
600,0,g,2,3.5,0,13,3900,7200
300,0,a,1,0.75,0,0,0,0
600,1,g,2,3.5,1,36,86700,172800
";

const VMTABLE: &str = "\
vm1,sub1,dep1,0,2591700,99.3,3.4,7.5,Interactive,4,32
vm2,sub2,dep2,424500,425400,37.8,37.8,37.8,Unknown,>24,>64
vm3,sub1,dep3,1133100,1133700,0.3,0.3,0.3,Delay-insensitive,1,1.75
";

const ONE_VM: &str = "\
Timestamp [ms];\tCPU cores;\tCPU capacity provisioned [MHZ];\tCPU usage [MHZ];\tCPU usage [%];\tMemory capacity provisioned [KB];\tMemory usage [KB];\tA;\tB;\tC;\tD
1376314846;\t1;\t2599.9;\t19.0;\t0.7;\t2097152.0;\t524288.0;\t0.0;\t1.4;\t0.0;\t0.0
1376315146;\t2;\t2599.9;\t19.0;\t0.7;\t2097152.0;\t1048576.0;\t0.0;\t1.4;\t0.0;\t0.0
";

const SUMMARY: &str = "vm,n,t0,t1,cores,prov,act_mean,act_max,act_p99
7,82,1372629804,1375221457,2,8192,874.2,6144.0,1949.6
9,10,1372629804,1372639804,1,1024,9.0,0.0,9.0
";

fn options() -> Options {
    Options { machine_cores: 64, machine_memory_bytes: Bytes(512 * GB), ..Options::default() }
}

/// Imports files of these contents. Returns the report and the trace.
fn imported(contents: &[&[u8]], options: &Options) -> Result<(Report, About, Vec<Vm>)> {
    let dir = tempfile::tempdir().unwrap();
    let from: Vec<_> = (0..contents.len()).map(|at| dir.path().join(format!("given-{at}"))).collect();
    for (path, content) in from.iter().zip(contents) {
        std::fs::write(path, content).unwrap();
    }
    let to = dir.path().join("out.parquet");
    let report = import(&from, &to, options, &mut |done, of| assert!(done <= of, "{done} of {of}"))?;
    let trace = Trace::open(&to).unwrap();
    let vms: Vec<_> = trace.vms().map(Result::unwrap).collect();
    assert_eq!((report.vms, report.still_running), (vms.len() as u64, vms.iter().filter(|vm| vm.departure.is_none()).count() as u64));
    Ok((report, trace.about().clone(), vms))
}

/// Reads a file of this content without writing a trace. Returns the numbers of rows, VMs and invalid rows.
fn gathered(content: &[u8]) -> Result<(u64, u64, u64)> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    let (options, mut progress) = (options(), |_, _| ());
    let (sink, _) = gather(&[file.path().to_owned()], Path::new("never"), &options, &mut progress)?;
    Ok((sink.report.rows, sink.report.vms, sink.report.bad_rows_total))
}

fn compressed(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn flavours_are_imported_with_their_lifetimes() {
    for content in [FLAVOURS.as_bytes().to_vec(), compressed(FLAVOURS), FLAVOURS.replace('\n', "\r\n").into_bytes()] {
        let (report, about, vms) = imported(&[&content], &options()).unwrap();
        assert_eq!((report.rows, report.vms, report.still_running, report.bad_rows_total), (3, 3, 1, 0));
        assert_eq!(report.formats, ["Azure V1 by flavours"]);
        // The last second is that of the third row, 86,700 s after its arrival.
        assert_eq!((about.ends, about.unix_time, about.generated), (87_300, false, false));
        assert_eq!(about.names.vm_types, ["g", "a"]);
        let small =
            Vm { id: 1, arrival: 300, departure: Some(300), cores: 1, memory_bytes: Bytes(3 * GB / 4), vm_type: Some(1), ..Vm::default() };
        let large = Vm {
            id: 0,
            arrival: 600,
            departure: Some(600 + 5_550),
            cores: 2,
            memory_bytes: Bytes(7 * GB / 2),
            vm_type: Some(0),
            ..small.clone()
        };
        let runs_on = Vm { id: 2, departure: None, ..large.clone() };
        assert_eq!(vms, [small, large, runs_on]);
    }
}

#[test]
fn a_vmtable_of_v1_or_v2_is_imported() {
    let (report, about, vms) = imported(&[VMTABLE.as_bytes()], &options()).unwrap();
    assert_eq!((report.formats.as_slice(), report.bad_rows_total, about.ends), (["Azure vmtable"].as_slice(), 0, 2_591_700));
    let sizes: Vec<_> = vms.iter().map(|vm| (vm.arrival, vm.departure, vm.cores, vm.memory_bytes.0, vm.customer)).collect();
    assert_eq!(
        sizes,
        [
            (0, None, 4, 32 * GB, Some(0)),
            (424_500, Some(425_400), 32, 128 * GB, Some(1)),
            (1_133_100, Some(1_133_700), 1, 7 * GB / 4, Some(0)),
        ]
    );
    assert_eq!(about.names.vm_types, ["4 cores, 32 GB", ">24 cores, >64 GB", "1 cores, 1.75 GB"]);
}

#[test]
fn quoted_fields_are_read_without_their_quotes() {
    let check = |text: &str, from: &str, to: &str, want: &str| {
        let (report, about, _) = imported(&[text.replace(from, to).as_bytes()], &options()).unwrap();
        assert_eq!((report.bad_rows_total, about.names.vm_types[0].as_str()), (0, want), "{report:?}");
    };
    check(FLAVOURS, ",g,", r#","g, ""large""","#, "g, \"large\"");
    check(VMTABLE, "4,32", r#""4","32""#, "4 cores, 32 GB");
}

#[test]
fn both_text_variants_of_bitbrains_are_imported() {
    let (report, about, vms) = imported(&[ONE_VM.as_bytes()], &options()).unwrap();
    assert_eq!((report.rows, about.unix_time, about.ends), (2, true, 1_376_315_146));
    let want = Vm { arrival: 1_376_314_846, cores: 2, memory_bytes: Bytes(2 * GB), untouched_ratio: Some(0.5), ..Vm::default() };
    assert_eq!(vms, std::slice::from_ref(&want));
    // The VM was resized between two samples, so its active memory exceeds its memory.
    let resized = ONE_VM.replace("1048576.0", "4194304.0");
    assert_eq!(imported(&[resized.as_bytes()], &options()).unwrap().2[0].untouched_ratio, Some(0.0));
    // Each file is one VM.
    assert_eq!(imported(&[ONE_VM.as_bytes(), ONE_VM.as_bytes()], &options()).unwrap().2, [want.clone(), Vm { id: 1, ..want }]);

    let (_, _, vms) = imported(&[SUMMARY.as_bytes()], &options()).unwrap();
    let imported: Vec<_> = vms.iter().map(|vm| (vm.departure, vm.cores, vm.memory_bytes.0, vm.untouched_ratio)).collect();
    assert_eq!(imported, [(None, 2, 8 * GB, Some(0.25)), (Some(1_372_639_804), 1, GB, Some(1.0))]);
}

#[test]
fn invalid_rows_are_counted_and_reported() {
    let check = |head: &str, row: &str, want: &str| {
        let content = format!("{head}{row}\n");
        let (report, ..) = imported(&[content.as_bytes()], &options()).unwrap();
        let line = content.lines().count();
        assert_eq!((report.bad_rows_total, report.bad_rows.len()), (1, 1), "{row}");
        assert!(report.bad_rows[0].contains(want) && report.bad_rows[0].contains(&format!("line {line}:")), "{:?}", report.bad_rows);
    };
    check(FLAVOURS, "600,0,g,two,3.5,0,0,0,0", "cores is \"two\"");
    check(FLAVOURS, "600,0,g,2,-3.5,0,0,0,0", "memory_gb is \"-3.5\"");
    check(FLAVOURS, "600,0,g,2,NaN,0,0,0,0", "memory_gb is \"NaN\"");
    check(FLAVOURS, "600,0,g,2", "the row has 4 fields");
    check(FLAVOURS, "600,0,g,2,3.5,0,0,9,8", "dur_lo_s 9 and dur_hi_s 8");
    check(FLAVOURS, "9223372036854775807,0,g,2,3.5,0,0,9,9", "arrival is 9223372036854775807 s");
    check(FLAVOURS, "600,0,g,0,3.5,0,0,9,9", "cores is 0");
    check(FLAVOURS, &"x".repeat(8_400_000), "longer than 8388608 bytes");
    check(FLAVOURS, "600,0,\"g,2,3.5,0,0,9,9", "a quote in it is not closed");
    check(FLAVOURS, "", "the line is empty");
    check(FLAVOURS, &",".repeat(64), "the row has 64 fields or more");
    check(VMTABLE, "a,b,c,1", "the row has 4 fields");
    check(VMTABLE, "a,b,c,900,600,1,1,1,x,2,2", "departure is 600 s");
    check(ONE_VM, "1376315146;2;0;0;0;2097152;-1;0;0;0;0", "active memory is -1024 bytes, which is invalid");
    check(SUMMARY, "7,82,1372629804,1,2,8192,874.2,6144.0,1949.6", "t1 is 1, before t0");
    // Twelve invalid rows: all are counted, ten are reported.
    let many = format!("{FLAVOURS}{}", "bad\n".repeat(12));
    let (report, ..) = imported(&[many.as_bytes()], &options()).unwrap();
    assert_eq!((report.bad_rows_total, report.bad_rows.len(), report.vms), (12, BAD_ROWS_REPORTED, 3));
}

#[test]
fn invalid_sources_are_refused() {
    let check = |contents: &[&[u8]], options: &Options, want: &str| {
        let error = imported(contents, options).unwrap_err().to_string();
        assert!(error.contains(want) && error.contains("given-"), "{error}");
    };
    check(&[b"hello\n"], &options(), "the file begins with \"hello\"; supported are: Azure V1");
    check(&[b""], &options(), "unknown format");
    check(&[b"arrival_s,batch,flavor,cores,memory_gb\n"], &options(), "no VM found; the file has no rows");
    check(&[b"arrival_s,batch,flavor,cores,memory_gb\nx,0,g,1,1\n"], &options(), "the first invalid row");
    check(&[b"PAR1 but nothing more"], &options(), "given-0");
    check(&[FLAVOURS.as_bytes(), ONE_VM.as_bytes()], &options(), "import them separately");
    let compressed = compressed(FLAVOURS);
    check(&[&compressed[..compressed.len() - 4]], &options(), "download the file again");
    #[cfg(not(feature = "sqlite"))]
    check(&[b"SQLite format 3\0..."], &options(), "--features sqlite");
    let missing = import(&[PathBuf::from("/no/such/file")], Path::new("/tmp/x"), &options(), &mut |_, _| ()).unwrap_err();
    assert!(missing.to_string().contains("cannot read /no/such/file"), "{missing}");
}

#[test]
fn lifetimes_are_drawn_for_rows_without_them() {
    let train = "arrival_s,batch,flavor,cores,memory_gb\n300,0,a,1,0.75\n300,0,g,2,3.5\n";
    assert_eq!(imported(&[train.as_bytes()], &options()).unwrap().0.still_running, 2);
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("dev.csv"), dir.path().join("dev.parquet"));
    // All VMs of type `a` lived 600 s; no VM of type `g` left.
    std::fs::write(
        &from,
        format!("{}300,0,a,1,0.75,0,2,600,600\n300,0,g,2,3.5,1,2,600,600\n", &FLAVOURS[..FLAVOURS.find('\n').unwrap() + 1]),
    )
    .unwrap();
    import(&[from], &to, &options(), &mut |_, _| ()).unwrap();
    let options = Options { lifetimes: Some(Lifetimes::of(&Trace::open(&to).unwrap()).unwrap()), seed: 3, ..options() };
    let (report, _, vms) = imported(&[train.as_bytes()], &options).unwrap();
    assert_eq!((report.lifetimes_drawn, vms[0].departure, vms[1].departure), (1, Some(900), None));
    // A source with lifetimes keeps its own. If all sources have lifetimes, none are drawn.
    assert_eq!(imported(&[train.as_bytes(), FLAVOURS.as_bytes()], &options).unwrap().0.lifetimes_drawn, 1);
    assert!(imported(&[FLAVOURS.as_bytes()], &options).unwrap_err().to_string().contains("lifetimes of its own"));
}

#[test]
fn truncated_files_never_panic() {
    for text in [FLAVOURS, VMTABLE, ONE_VM, SUMMARY] {
        for cut in 0..text.len() {
            let _ = gathered(&text.as_bytes()[..cut]);
        }
        let compressed = compressed(text);
        for cut in 1..compressed.len() - 1 {
            assert!(gathered(&compressed[..cut]).is_err(), "cut at {cut}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Every row becomes a VM or an invalid row, whatever its fields contain.
    #[test]
    fn no_row_is_lost(fields in prop::collection::vec(prop::collection::vec("[-0-9.a>\"]{0,6}", 9), 1..8)) {
        let rows: Vec<_> = fields.iter().map(|row| row.join(",")).collect();
        let content = format!("{FLAVOURS}{}\n", rows.join("\n"));
        let (read, vms, bad) = gathered(content.as_bytes()).unwrap();
        prop_assert_eq!(read, 3 + rows.len() as u64);
        prop_assert_eq!(read, vms + bad);
    }
}

#[test]
fn a_schedulers_log_is_a_trace_of_the_vms_that_were_placed() {
    let request = |vm: &str| format!(r#"{{"vm":"{vm}","cores":2,"memory_bytes":{GB},"pool_bytes":{}}}"#, GB / 2);
    let on = r#"{"host":"a","nodes":[{"cores":2,"mib":768}],"slices":1}"#;
    let log = format!(
        r#"{{"sequence":1,"time_ms":1000500,"who":"scheduler","event":{{"topology":{{"slice_bytes":{},"pools":[]}}}}}}
{{"sequence":2,"time_ms":1000600,"who":"scheduler","event":{{"kept":{{"id":7,"request":{},"on":{on}}}}}}}
{{"sequence":3,"time_ms":1002000,"who":"op","event":{{"decided":{{"id":9,"request":{},"on":{on}}}}}}}
{{"sequence":4,"time_ms":1003000,"who":"op","event":{{"decided":{{"id":10,"request":{},"on":null}}}}}}
{{"sequence":5,"time_ms":1004000,"who":"scheduler","event":{{"grantable":{{"pool":"p","slices":null}}}}}}
{{"sequence":6,"time_ms":1060000,"who":"op","event":{{"ended":{{"vm":"two"}}}}}}
{{"sequence":7,"time_ms":1060000,"who":"op","event":{{"ended":{{"vm":"unknown"}}}}}}
"#,
        GB / 4,
        request("one"),
        request("two"),
        request("refused"),
    );
    let (report, about, vms) = imported(&[log.as_bytes()], &options()).unwrap();
    let recorded = |arrival_event, departure_event| {
        Some(Box::new(Recorded { pool_bytes: Bytes(GB / 4), requested_bytes: Bytes(GB / 2), arrival_event, departure_event }))
    };
    let one = Vm { id: 7, arrival: 1_000, cores: 2, memory_bytes: Bytes(GB), recorded: recorded(2, None), ..Vm::default() };
    let two = Vm { id: 9, arrival: 1_002, departure: Some(1_060), recorded: recorded(3, Some(6)), ..one.clone() };
    assert_eq!(vms, [one, two]);
    assert_eq!((report.formats.as_slice(), about.unix_time, about.ends), (["log of a scheduler"].as_slice(), true, 1_060));
    assert_eq!(report.bad_rows_total, 1);
    assert!(report.bad_rows[0].contains("line 7: unknown ended and was not placed"), "{:?}", report.bad_rows);
}

#[test]
fn events_of_a_log_keep_their_order_when_the_clock_is_set_back() {
    let line = |sequence: u32, time_ms: u32, event: &str| format!("{{\"sequence\":{sequence},\"time_ms\":{time_ms},\"event\":{event}}}\n");
    let placed = |id: u32, vm: &str| {
        format!(r#"{{"decided":{{"id":{id},"request":{{"vm":"{vm}","cores":1,"memory_bytes":{GB},"pool_bytes":0}},"on":{{"slices":0}}}}}}"#)
    };
    let log = [
        line(1, 90_000, &format!(r#"{{"topology":{{"slice_bytes":{GB}}}}}"#)),
        line(2, 90_100, &placed(1, "one")),
        line(3, 60_000, &placed(2, "two")),
        line(4, 60_000, r#"{"ended":{"vm":"two"}}"#),
        line(5, 95_000, r#"{"ended":{"vm":"one"}}"#),
    ];
    let (report, _, vms) = imported(&[log.concat().as_bytes()], &options()).unwrap();
    let order: Vec<_> = vms.iter().map(|vm| (vm.id, vm.arrival, vm.departure)).collect();
    assert_eq!(order, [(1, 90, Some(95)), (2, 90, Some(90))]);
    assert_eq!(report.bad_rows_total, 0, "{:?}", report.bad_rows);
    // Another source gets ids that the log does not have.
    let both = imported(&[log.concat().as_bytes(), log.concat().as_bytes()], &options()).unwrap().2;
    assert_eq!(both.iter().map(|vm| vm.id).collect::<Vec<_>>(), [1, 2, 4, 5]);
}
