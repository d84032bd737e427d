//! Counters: structs of plain `u64` whose fields are named once. Sums, differences and reports visit the fields.

/// A set of counters, such as a struct that [`counters!`](crate::counters!) defines.
pub trait CounterSet: Copy + Default {
    /// Name and value of each counter, in the order of the definition.
    fn fields(&self) -> impl Iterator<Item = (&'static str, u64)>;

    /// Adds each counter of `more` to the one of that name.
    fn add(&mut self, more: &Self);

    /// Returns the counts since `before`. A counter that is less than before has restarted: it gives 0.
    fn since(&self, before: &Self) -> Self;
}

/// Defines a struct of counters. It implements [`CounterSet`](crate::counters::CounterSet).
///
/// - `pub struct Name { a, b }`: the fields are `u64`, and as visible as the struct.
/// - `pub struct Name => copy_name { a, b }`: also defines and exports the macro `copy_name!(from => Type { more })`. It builds a
///   `Type` from any value that has the fields of `Name`: with these fields and those of `more`. A message whose field has
///   another name than the counter does not compile.
/// - `pub struct Name { a, b; c: Set }`: a struct with a part that is a `CounterSet` itself. `fields` leaves it out.
/// - `pub struct Name => copy_name { x: pub(crate) X { a } y: pub(crate) Y { b } }`: counters that are kept in several structs,
///   because some are touched more often than others, and reported in one: `Name::of(&x, &y)`.
#[macro_export]
macro_rules! counters {
    (
        $(#[$doc:meta])* $vis:vis struct $name:ident => $copy:ident {
            $($(#[$part_doc:meta])* $part:ident: $part_vis:vis $type:ident {
                $($(#[$field_doc:meta])* $field:ident,)*
            })+
        }
    ) => {
        $($crate::counters! { @set [$(#[$part_doc])*] $part_vis $type {$($(#[$field_doc])* $field,)*} {} })+
        $crate::counters! { $(#[$doc])* $vis struct $name => $copy { $($($(#[$field_doc])* $field,)*)+ } }

        impl $name {
            pub(crate) fn of($($part: &$type),+) -> Self {
                Self { $($($field: $part.$field,)*)+ }
            }
        }
    };
    ($(#[$doc:meta])* $vis:vis struct $name:ident => $copy:ident {
        $($(#[$field_doc:meta])* $field:ident,)* $(; $($part:tt)*)?
    }) => {
        $crate::counters! { @set [$(#[$doc])*] $vis $name {$($(#[$field_doc])* $field,)*} {$($($part)*)?} }
        $crate::counters! { @copy ($) $name $copy $($field)* }
    };
    ($(#[$doc:meta])* $vis:vis struct $name:ident {
        $($(#[$field_doc:meta])* $field:ident,)* $(; $($part:tt)*)?
    }) => {
        $crate::counters! { @set [$(#[$doc])*] $vis $name {$($(#[$field_doc])* $field,)*} {$($($part)*)?} }
    };
    (
        @set [$(#[$doc:meta])*] $vis:vis $name:ident {$($(#[$field_doc:meta])* $field:ident,)*}
        {$($(#[$part_doc:meta])* $part:ident: $type:ty,)*}
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $name {
            $($(#[$field_doc])* $vis $field: u64,)*
            $($(#[$part_doc])* $vis $part: $type,)*
        }

        impl $crate::CounterSet for $name {
            fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }

            fn add(&mut self, more: &Self) {
                $(self.$field += more.$field;)*
                $($crate::CounterSet::add(&mut self.$part, &more.$part);)*
            }

            fn since(&self, before: &Self) -> Self {
                Self {
                    $($field: self.$field.saturating_sub(before.$field),)*
                    $($part: $crate::CounterSet::since(&self.$part, &before.$part),)*
                }
            }
        }
    };
    (@copy ($d:tt) $name:ident $copy:ident $($field:ident)*) => {
        #[doc = concat!("Makes a value of another type with the counters of a `", stringify!($name), "`, or back.")]
        #[macro_export]
        macro_rules! $copy {
            ($d from:expr => $d to:path $d({ $d($d more:tt)* })?) => {{
                let from = &$d from;
                $d to { $($field: from.$field,)* $d($d($d more)*)? }
            }};
        }
    };
}

#[cfg(test)]
mod tests {
    use super::CounterSet;
    use crate::{DropReason, Drops};
    use std::vec::Vec;

    counters! {
        /// In one.
        struct Whole => copy_whole {
            /// Often.
            often: Often {
                /// One.
                a,
            }
            /// Seldom.
            seldom: Seldom {
                /// Two.
                b,
            }
        }
    }

    counters! {
        /// With a part.
        struct Parted {
            /// One.
            a,
            ;
            /// The part.
            drops: Drops,
        }
    }

    #[derive(Debug, PartialEq)]
    struct Message {
        a: u64,
        b: u64,
        name: &'static str,
    }

    #[test]
    fn counters_are_visited_added_and_subtracted_by_name() {
        let mut sum = Whole::of(&Often { a: 1 }, &Seldom { b: 20 });
        sum.add(&Whole { a: 2, b: 0 });
        assert_eq!(sum.fields().collect::<Vec<_>>(), [("a", 3), ("b", 20)]);
        assert_eq!(sum.since(&Whole { a: 1, b: 21 }), Whole { a: 2, b: 0 });
    }

    #[test]
    fn a_message_gets_each_counter_and_what_else_it_has() {
        let message = copy_whole!(Whole { a: 1, b: 2 } => Message { name: "it" });
        assert_eq!(
            message,
            Message {
                a: 1,
                b: 2,
                name: "it"
            }
        );
        assert_eq!(copy_whole!(message => Whole), Whole { a: 1, b: 2 });
    }

    #[test]
    fn parts_are_added_with_the_rest() {
        let mut all = Parted::default();
        all.drops[DropReason::TxFull] = 2;
        all.add(&all.clone());
        assert_eq!((all.drops[DropReason::TxFull], all.drops.total()), (4, 4));
        let named = all.drops.fields().find(|(name, _)| *name == "tx-full");
        assert_eq!(named, Some(("tx-full", 4)));
    }
}
