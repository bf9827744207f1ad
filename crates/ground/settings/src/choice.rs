//! Settings whose value is one of a few words.

/// Declares an enumeration of words: the variants, their words, and conversions between the two.
#[macro_export]
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ::serde::Serialize, ::serde::Deserialize)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)* }

        impl $name {
            /// All variants, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The words of all variants, in the same order.
            pub const NAMES: &'static [&'static str] = &[$($text),*];

            /// Returns the word of this variant.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// Returns the variant with this word, or `None`.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|choice| choice.as_str() == name)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl $crate::Setting for $name {
            fn from_value(value: $crate::Value) -> Option<Self> {
                if let $crate::Value::Choice(name) = value { Self::from_name(name) } else { None }
            }

            fn to_value(&self, _: $crate::Unit) -> $crate::Value {
                $crate::Value::Choice(self.as_str())
            }
        }
    };
}
