//! Families of compressors.

/// Compressors with similar results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Repetitions only, with a short form for short matches: `lzo`, `lzo-rle`.
    Lzo,
    /// Repetitions only, optimised for speed: `lz4`, `lz4hc`, `842`.
    Lz4,
    /// Repetitions and entropy coding: `zstd`, `deflate`.
    Zstd,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 3] = [Self::Lzo, Self::Lz4, Self::Zstd];

    /// The kernel's name of the family's usual compressor.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lzo => "lzo",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Returns the family of a compressor, by its name in `/sys/module/zswap/parameters/compressor`.
    ///
    /// `lzo-rle` writes what `lzo` writes, with a shorter form for runs of zeros. `lz4hc` searches longer than `lz4`,
    /// so LZ4's ratio is conservative for it. `deflate` uses entropy coding like `zstd`. `842` encodes only repetitions
    /// of two, four and eight bytes; LZ4 is the most similar, and compresses better. An unknown name is treated as the
    /// kernel's default, `lzo`.
    #[must_use]
    pub fn of_compressor(name: &str) -> Self {
        match name.trim() {
            "lz4" | "lz4hc" | "842" => Self::Lz4,
            "zstd" | "deflate" => Self::Zstd,
            _ => Self::Lzo,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressors_belong_to_families() {
        for family in Family::ALL {
            assert_eq!(Family::of_compressor(family.as_str()), family);
        }
        for (name, want) in [
            ("lzo", Family::Lzo),
            ("lzo-rle\n", Family::Lzo),
            ("lz4", Family::Lz4),
            ("lz4hc", Family::Lz4),
            ("842", Family::Lz4),
            ("zstd", Family::Zstd),
            ("deflate", Family::Zstd),
            ("unknown", Family::Lzo),
        ] {
            assert_eq!(Family::of_compressor(name), want, "{name}");
        }
    }
}
