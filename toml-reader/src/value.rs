//! Values and what is read from them. Each function returns `None` if it has recorded a fault.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use toml::Spanned;
use toml::de::DeValue;

use crate::{Reader, Table};

/// A value and its place in the file.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    pub(crate) reader: &'a Reader,
    outer: Option<&'a Value<'a>>,
    step: Step<'a>,
    value: &'a Spanned<DeValue<'a>>,
}

/// From a list or table to a value in it.
#[derive(Clone, Copy)]
enum Step<'a> {
    Name(&'a str),
    Index(usize),
}

impl<'a> Value<'a> {
    pub(crate) fn root(reader: &'a Reader, value: &'a Spanned<DeValue<'a>>) -> Self {
        Self {
            reader,
            outer: None,
            step: Step::Name(""),
            value,
        }
    }

    pub(crate) fn field(&'a self, name: &'a str, value: &'a Spanned<DeValue<'a>>) -> Self {
        Self {
            outer: Some(self),
            step: Step::Name(name),
            value,
            ..*self
        }
    }

    /// For example `groups[1].name`.
    pub fn path(&self) -> String {
        let outer = self.outer.map_or(String::new(), Self::path);
        match self.step {
            Step::Name(name) => join(&outer, name),
            Step::Index(index) => format!("{outer}[{index}]"),
        }
    }

    /// Name of the field; empty for an item of a list.
    pub fn name(&self) -> &'a str {
        match self.step {
            Step::Name(name) => name,
            Step::Index(_) => "",
        }
    }

    /// Paths below this value of the fields that have faults, if it is the last value that was read.
    pub fn faulty(&self) -> BTreeSet<String> {
        let (outer, faults) = (self.path(), self.reader.faults.borrow());
        let below = faults
            .iter()
            .rev()
            .map_while(|(_, field, _)| field.strip_prefix(&outer));
        below.map(|field| field.trim_start_matches('.').into()).collect()
    }

    /// Records a fault of this value.
    pub fn fault(&self, message: impl Display) {
        self.fault_at("", message);
    }

    /// Records a fault of the field at `path` below this value, at the position of the nearest existing value.
    pub fn fault_at(&self, path: &str, message: impl Display) {
        let mut value = self.value;
        for step in path.split(['.', '[']) {
            let inner = match (value.get_ref(), step.strip_suffix(']')) {
                (DeValue::Array(list), Some(index)) => index.parse().ok().and_then(|i: usize| list.get(i)),
                (DeValue::Table(table), None) => self.reader.field(table, step).map(|(_, value)| value),
                _ => None,
            };
            let Some(inner) = inner else { break };
            value = inner;
        }
        let field = join(&self.path(), path);
        self.reader.fault(value.span().start, field, message.to_string());
    }

    /// The value of `result`, or a fault with its error.
    pub fn accept<T>(&self, result: Result<T, impl Display>) -> Option<T> {
        result.map_err(|error| self.fault(error)).ok()
    }

    /// A table.
    pub fn table(self, expected: &str) -> Option<Table<'a>> {
        match self.value.get_ref() {
            DeValue::Table(table) => Some(Table {
                value: self,
                table,
                known: RefCell::default(),
                old: RefCell::default(),
            }),
            _ => self.wrong_type(expected),
        }
    }

    /// The values of a list.
    pub fn list(&'a self, expected: &str) -> Option<impl Iterator<Item = Self>> {
        let DeValue::Array(list) = self.value.get_ref() else {
            return self.wrong_type(expected);
        };
        let values = list.iter().enumerate().map(|(i, value)| Self {
            outer: Some(self),
            step: Step::Index(i),
            value,
            ..*self
        });
        Some(values)
    }

    /// Whether it is a text.
    pub fn is_text(&self) -> bool {
        matches!(self.value.get_ref(), DeValue::String(_))
    }

    /// Whether it is a whole number.
    pub fn is_number(&self) -> bool {
        matches!(self.value.get_ref(), DeValue::Integer(_))
    }

    /// A text.
    pub fn text(self) -> Option<&'a str> {
        self.expect_text("a text in quotes")
    }

    /// A text, copied.
    pub fn string(self) -> Option<String> {
        self.text().map(String::from)
    }

    /// A text that parses as `T`; `expected` is for the fault.
    pub fn parsed<T: FromStr>(self, expected: &str) -> Option<T> {
        let text = self.expect_text(expected)?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            self.fault(format_args!("{text:?} is not {expected}"));
        }
        parsed
    }

    /// A text that parses as `T`, whose errors state what is allowed.
    pub fn parse<T: FromStr<Err: Display>>(self) -> Option<T> {
        self.accept(self.text()?.parse())
    }

    /// A whole number. The fault outside `range` is the number followed by `outside`.
    pub fn number<T: TryFrom<u64>>(self, range: RangeInclusive<u64>, outside: &str) -> Option<T> {
        let DeValue::Integer(integer) = self.value.get_ref() else {
            return self.wrong_type("a whole number");
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number
            .filter(|n| range.contains(n))
            .and_then(|n| n.try_into().ok());
        if number.is_none() {
            let is_negative = integer.as_str().starts_with('-') && *range.start() == 0;
            let outside = if is_negative {
                "is negative: give 0 or more"
            } else {
                outside
            };
            self.fault(format_args!("{integer} {outside}"));
        }
        number
    }

    /// A number or text that parses as `T`.
    pub fn number_or_text<T: FromStr<Err: Display>>(self) -> Option<T> {
        let parsed = match self.value.get_ref() {
            DeValue::String(text) => text.parse(),
            DeValue::Integer(integer) => integer.to_string().parse(),
            DeValue::Float(float) => float.to_string().parse(),
            _ => return self.wrong_type("a number, or a text in quotes,"),
        };
        self.accept(parsed)
    }

    /// True or false.
    pub fn flag(self) -> Option<bool> {
        match self.value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            _ => self.wrong_type("true or false"),
        }
    }

    /// `true` for the default of `T`, `false` for none, or a text that parses as `T`; `expected` is for the fault.
    pub fn flag_or<T: FromStr + Default>(self, expected: &str) -> Option<Option<T>> {
        match self.value.get_ref() {
            DeValue::Boolean(flag) => Some(flag.then(T::default)),
            _ => self.parsed(expected).map(Some),
        }
    }

    fn expect_text(self, expected: &str) -> Option<&'a str> {
        match self.value.get_ref() {
            DeValue::String(text) => Some(text),
            _ => self.wrong_type(expected),
        }
    }

    fn wrong_type<T>(&self, expected: &str) -> Option<T> {
        let found = match self.value.get_ref() {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number with a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.fault(format_args!("{found} where {expected} belongs"));
        None
    }
}

/// `outer.inner`, without a dot if either is empty.
pub fn join(outer: &str, inner: &str) -> String {
    let dot = if outer.is_empty() || inner.is_empty() {
        ""
    } else {
        "."
    };
    format!("{outer}{dot}{inner}")
}
