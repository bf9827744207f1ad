//! Line charts as SVG. They scale with the page, so that they can be read on a phone.

use std::fmt::Write;

/// The size in the chart's own units. At a width of 360 pixels, text of 22 units has 12 pixels.
const WIDTH: f64 = 660.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 110.0;
const BOTTOM: f64 = 34.0;
const TOP: f64 = 12.0;

/// One line of a chart.
pub(super) struct Line {
    /// Its style: `far`, `memory`, `saved` or `rate`.
    pub(super) class: &'static str,
    /// Time in milliseconds, and value.
    pub(super) points: Vec<(u64, f64)>,
}

/// A chart of lines over the same time.
pub(super) struct Chart<'a> {
    pub(super) lines: Vec<Line>,
    /// A value that is marked: points above it are breaches.
    pub(super) limit: Option<f64>,
    /// How values of the axis are written.
    pub(super) label: &'a dyn Fn(f64) -> String,
    /// What the chart shows, for readers who cannot see it.
    pub(super) title: &'a str,
}

impl Chart<'_> {
    /// The chart as SVG; empty without points.
    pub(super) fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let (Some(begin), Some(end)) = (points().map(|point| point.0).min(), points().map(|point| point.0).max()) else {
            return String::new();
        };
        let lowest = points().map(|point| point.1).fold(0.0, f64::min);
        let highest = points().map(|point| point.1).chain(self.limit).fold(lowest, f64::max);
        let span = if highest > lowest { highest - lowest } else { 1.0 };
        #[expect(clippy::cast_precision_loss, reason = "a position on a screen")]
        let x = |unix_ms: u64| LEFT + (WIDTH - LEFT) * (unix_ms - begin) as f64 / (end - begin).max(1) as f64;
        let y = |value: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - (value - lowest) / span);
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", escaped(self.title));
        for value in [lowest, lowest + span / 2.0, lowest + span] {
            let (height, text) = (y(value), escaped(&(self.label)(value)));
            let _ = write!(svg, "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{height:.1}\" y2=\"{height:.1}\"/>");
            let _ = write!(svg, "<text class=\"value\" x=\"{}\" y=\"{:.1}\">{text}</text>", LEFT - 8.0, height + 7.0);
        }
        for line in &self.lines {
            let path: Vec<_> = line.points.iter().map(|&(at, value)| format!("{:.1},{:.1}", x(at), y(value))).collect();
            let _ = write!(svg, "<polyline class=\"{}\" points=\"{}\"/>", line.class, path.join(" "));
        }
        if let Some(limit) = self.limit {
            let height = y(limit);
            let _ = write!(svg, "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{height:.1}\" y2=\"{height:.1}\"/>");
            for &(at, value) in points().filter(|point| point.1 > limit) {
                let _ = write!(svg, "<circle class=\"breach\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\"/>", x(at), y(value));
            }
        }
        let _ = write!(svg, "<text class=\"begin\" x=\"{LEFT}\" y=\"{}\">0</text>", HEIGHT - 6.0);
        let _ = write!(svg, "<text class=\"end\" x=\"{WIDTH}\" y=\"{}\">{}</text></svg>", HEIGHT - 6.0, duration(end - begin));
        svg
    }
}

/// A time in the unit that gives the shortest number.
pub(super) fn duration(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..=179 => format!("{seconds} s"),
        seconds @ 180..=10_799 => format!("{} min", seconds / 60),
        seconds @ 10_800..=259_199 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// Text for HTML. Names of cgroups are chosen by users.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter => safe.push(letter),
        }
    }
    safe
}
