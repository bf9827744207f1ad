//! Units of knobs: how values are written.

/// The unit of a knob's values, which determines how they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// `120s`.
    Duration,
    /// A duration, or `off`.
    DurationOrOff,
    /// `64MiB`.
    Bytes,
    /// `64MiB/s`.
    BytesPerSecond,
    /// `73%`.
    Ratio,
    /// `0.2%`, per minute.
    RatioPerMinute,
    /// `98%`: the share of past values at or below the chosen one.
    Percentile,
    /// `20%`, without decimals, because the kernel's parameter has none.
    WholePercent,
    /// `1000`.
    Count,
    /// `-7`: a whole number of up to 63 bits, which may be negative.
    Integer,
    /// `true`.
    Bool,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// An absolute path.
    Path,
    /// An absolute path, or `off`.
    PathOrOff,
    /// A path; a relative one starts at the directory of the file that sets it.
    RelativePath,
    /// The name of a program that is searched in `PATH`, or its path.
    Program,
    /// Permissions of a file in octal, such as `0600`.
    Mode,
    /// A word of letters, digits, `-` and `_`, or nothing.
    Word,
    /// Text on one line.
    Text,
    /// Any number of texts.
    Texts,
    /// Any number of numbers: `[0.5, 1]`.
    Numbers,
    /// Numbers by name: `{ instructions = 1e9 }`, or a table of its own.
    NamedNumbers,
    /// A loopback address and port, or `off`.
    Address,
    /// An address and port on which to listen.
    Listen,
    /// An absolute path, or the URL of an object store; or nothing.
    Store,
    /// A URL of HTTP or HTTPS.
    Url,
    /// A date with its time and offset.
    Time,
    /// A pattern for cgroup paths.
    Glob,
    /// A pattern for names.
    NameGlob,
    /// A key, `=`, and a pattern for its value.
    Annotation,
}

impl Unit {
    /// Returns the name of the unit in the documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Duration => "duration",
            Self::DurationOrOff => "duration or off",
            Self::Bytes => "size",
            Self::BytesPerSecond => "size per second",
            Self::Ratio => "ratio",
            Self::RatioPerMinute => "ratio per minute",
            Self::Percentile => "percentile",
            Self::WholePercent => "whole percent",
            Self::Count => "number",
            Self::Integer => "whole number",
            Self::Bool => "true or false",
            Self::Choice(_) => "choice",
            Self::Path => "path",
            Self::PathOrOff => "path or off",
            Self::RelativePath => "path or relative path",
            Self::Program => "program",
            Self::Mode => "permissions",
            Self::Word => "word",
            Self::Text => "text",
            Self::Texts => "list of texts",
            Self::Numbers => "list of numbers",
            Self::NamedNumbers => "table of numbers",
            Self::Address => "address",
            Self::Listen => "address to listen on",
            Self::Store => "path or URL",
            Self::Url => "URL",
            Self::Time => "time",
            Self::Glob => "pattern",
            Self::NameGlob => "name pattern",
            Self::Annotation => "key=pattern",
        }
    }

    /// Returns a value of this unit in TOML, for knobs that have no default.
    pub(crate) const fn placeholder(self) -> &'static str {
        match self {
            Self::Count | Self::Integer => "1",
            Self::Bool => "false",
            Self::Texts | Self::Numbers => "[]",
            Self::NamedNumbers => "{}",
            Self::Duration | Self::DurationOrOff => "\"10s\"",
            Self::Bytes => "\"1GiB\"",
            Self::Ratio | Self::RatioPerMinute | Self::Percentile | Self::WholePercent => "\"1%\"",
            Self::Path | Self::PathOrOff | Self::RelativePath => "\"/path\"",
            Self::Url => "\"http://host:port\"",
            _ => "\"...\"",
        }
    }

    /// Whether values are numbers, with or without a unit: those may be written without quotes, or are refused with a
    /// message that names the missing unit.
    pub(crate) const fn is_number(self) -> bool {
        matches!(
            self,
            Self::Duration
                | Self::DurationOrOff
                | Self::Bytes
                | Self::BytesPerSecond
                | Self::Ratio
                | Self::RatioPerMinute
                | Self::Percentile
                | Self::WholePercent
                | Self::Count
                | Self::Integer
        )
    }
}
