//! Enums whose members have names.

/// Defines an enum with a name for each member: `ALL`, `NAMES`, `name` and `Display`.
#[macro_export]
macro_rules! names {
    ($(#[$meta:meta])* $vis:vis enum $enum:ident {
        $($(#[$doc:meta])* $member:ident $(= $byte:literal)? => $text:literal,)*
    }) => {
        $(#[$meta])*
        $vis enum $enum { $($(#[$doc])* $member $(= $byte)?,)* }

        impl $enum {
            /// All members, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$member,)*];

            /// The names of all members, in the same order.
            pub const NAMES: &'static [&'static str] = &[$($text,)*];

            /// Its name in texts, tables and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$member => $text,)* }
            }
        }

        impl core::fmt::Display for $enum {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
