//! The text form of access traces: what is read is what was written, and every mistake is named.

use arena::programs::PROGRAMS;
use arena::text::{read, write};
use arena::trace::Kind;
use proptest::prelude::*;

const SMALL: &str = "thermocline-access 1
name sessions   # a comment
interval 500ms
group_pages 16
compression 60
settle 2s

groups 0-99 anon 35%
groups 100-149 file
0 access 0-149
1 access 0-9 100
1 access 50
3 free 140-149 7
end 9
";

fn problem(text: &str) -> String {
    read(text.as_bytes()).map_or_else(|error| error.to_string(), |trace| format!("{} is a trace", trace.name))
}

#[test]
fn a_trace_is_read_as_it_is_documented() {
    let trace = read(SMALL.as_bytes()).unwrap();
    assert_eq!((trace.name.as_str(), trace.interval_ms, trace.group_pages, trace.compression, trace.settle), ("sessions", 500, 16, 60, 4));
    assert_eq!((trace.groups.len(), trace.groups[99].kind, trace.groups[100].kind), (150, Kind::Anon, Kind::File));
    assert_eq!(trace.groups[0].compressed.0, 350_000);
    assert_eq!(trace.intervals.len(), 9);
    assert_eq!(trace.intervals[1].accessed, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 100]);
    assert_eq!(trace.intervals[3].freed, [7, 140, 141, 142, 143, 144, 145, 146, 147, 148, 149]);
    assert_eq!(read(write(&trace).as_bytes()).unwrap(), trace);
}

#[test]
fn a_generated_trace_survives_its_file() {
    for program in PROGRAMS.iter().filter(|program| ["build", "sandbox"].contains(&program.name)) {
        let trace = program.trace(3);
        assert_eq!(read(write(&trace).as_bytes()).unwrap(), trace, "{}", program.name);
    }
}

#[test]
fn every_mistake_is_named_with_its_line_and_remedy() {
    let check = |from: &str, to: &str, expected: &str| {
        let text = SMALL.replacen(from, to, 1);
        assert_ne!(text, SMALL, "{from:?} is not in the trace");
        let found = problem(&text);
        assert!(found.contains(expected), "{from:?} -> {to:?}: {found}");
    };
    check("thermocline-access 1", "thermocline-access 2", "line 1: the first line is \"thermocline-access 2\"; write");
    check("interval 500ms", "interval 500", "line 3: `interval`");
    check("interval 500ms", "interval 2h", "line 3: `interval` is 2h; give 1ms to 1h");
    check("interval 500ms\n", "", "`interval 1s`");
    check("group_pages 16", "group_pages 0", "line 4: `group_pages` is 0");
    check("compression 60", "compression much", "line 5: compression \"much\"; write a whole number up to 3600");
    check("settle 2s", "settle 9s", "leaves nothing to measure of a trace of 4s500ms");
    check("settle 2s", "settle 2s\nsettle 2s", "line 7: `settle` is given twice");
    check("anon 35%", "anon", "`groups FIRST-LAST anon COMPRESSED`");
    check("groups 100-149", "groups 101-149", "line 9: groups 101-149 begin at 101; the next group is 100");
    check("groups 100-149", "groups 149-100", "the last is below the first; write `100-149`");
    check("1 access 0-9", "1 reads 0-9", "line 11: `1 reads 0-9 100`; write `1 access GROUPS`");
    check("1 access 0-9", "1 access 0-150", "line 11: group 150 is not declared; there are 150");
    check("1 access 0-9", "1 access 0-9x", "line 11: group \"9x\"");
    check("3 free", "0 free", "line 13: interval 0 follows interval 1; sort the intervals");
    check("end 9", "end 3", "line 14: `end 3`; the number of intervals is at least 4");
    check("end 9\n", "", "it may be truncated");
    check("end 9", "end 9\n9 access 1", "line 15: \"9 access 1\" follows `end`");
    check("0 access", "0 access 1\nname late\n0 access", "line 11: key `name` comes after intervals");
    check("name", "names", "line 2: unknown key `names`");
    check("groups 0-99 anon 35%\ngroups 100-149 file\n0 access 0-149\n1 access 0-9 100\n1 access 50\n3 free 140-149 7\n", "", "no groups");
    assert!(problem("").contains("the file is empty"));
    assert!(read(&b"thermocline-access 1\nname \xff\n"[..]).unwrap_err().to_string().contains("line 2: not UTF-8"));
}

proptest! {
    #[test]
    fn any_text_is_answered(lines in prop::collection::vec("[a-z0-9 %#-]{0,24}", 0..20)) {
        let _ = read(format!("thermocline-access 1\n{}", lines.join("\n")).as_bytes());
    }

    #[test]
    fn a_trace_that_is_cut_is_refused(at in 1..SMALL.len() - 1) {
        prop_assert!(read(&SMALL.as_bytes()[..at]).is_err());
    }
}
