//! Reports of journals from real kernels.

use super::*;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/tests/journal-6.12-idle.jsonl")
}

#[test]
fn a_real_journal_has_jobs_a_verdict_and_a_page() {
    let report = Report::of_files(&[golden()]).unwrap();
    assert!(!report.jobs.is_empty() && report.ends_unix_ms > report.begins_unix_ms);
    let job = &report.jobs[0];
    assert!(job.saved_mean_bytes > Bytes::ZERO && job.points.len() > 3);
    let page = report.page();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("<polyline class=\"far\"") && page.contains(&report.verdict()[1]));
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("<script"), "it loads nothing");
}

#[test]
fn a_broken_objective_is_the_verdict() {
    let job = JobReport { job: "/a<b>".to_owned(), periods: 100, periods_over: 3, over_allowed_ratio: 0.01, ..JobReport::default() };
    let mut report = Report { jobs: vec![job], saved_mean_bytes: Some(1 << 20), dram_bytes: Some(Bytes(1 << 30)), ..Report::default() };
    assert!(
        report.verdict()[1].contains("BROKEN in 1 of 1") && report.verdict()[2].contains("3 of 100 periods over the objective, 1 allowed")
    );
    let page = report.page();
    assert!(page.contains("verdict bad") && page.contains("/a&lt;b&gt;") && !page.contains("/a<b>"));
    report.jobs[0].periods_over = 1;
    assert!(report.verdict()[1].contains("kept in 1 of 1") && report.verdict().len() == 2);
}

#[test]
fn an_absent_or_empty_journal_is_no_report() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(Report::of_directory(directory.path()), Err(ReportError::NoJournal(_))));
    let empty = directory.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    assert!(matches!(Report::of_files(&[empty]), Err(ReportError::Empty)));
}

#[test]
fn long_series_are_joined() {
    let text = std::fs::read_to_string(golden()).unwrap();
    let (head, periods): (Vec<_>, Vec<_>) = text.lines().partition(|line| !line.contains("\"record\":\"period\""));
    let many: Vec<_> = head.into_iter().map(ToOwned::to_owned).chain((0..3000).map(|at| periods[at % periods.len()].to_owned())).collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    std::fs::write(&path, many.join("\n") + "\n").unwrap();
    let report = Report::of_files(&[path]).unwrap();
    assert!(report.jobs.iter().all(|job| job.points.len() <= 1024));
    assert!(report.jobs.iter().any(|job| job.points.len() > 500));
}
