//! Reads TOML field by field. Records every fault with its position and continues.

use core::str::FromStr;
use std::collections::BTreeMap;

use castnet_wire::{PortId, Psn};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fault::{Fault, FaultKind, Faults, Position, join};
use crate::limit::Limit;

/// A parsed value with the path of its field.
#[derive(Clone)]
pub(crate) struct Value<'a, 't> {
    path: String,
    at: usize,
    value: &'a DeValue<'t>,
}

impl Value<'_, '_> {
    pub(crate) fn is_text(&self) -> bool {
        matches!(self.value, DeValue::String(_))
    }
}

/// A table that is being read. Fields are taken one by one; those that remain are unknown.
pub(crate) struct Fields<'a, 't> {
    path: String,
    at: usize,
    table: &'a DeTable<'t>,
    known: Vec<&'static str>,
    /// Names of earlier versions that are still accepted.
    old: Vec<&'static str>,
}

/// Fields that were renamed, and their earlier names, which are still accepted.
const RENAMED: [(&str, &str); 3] = [
    ("endpoints", "paths"),
    ("start_psn", "psn_start"),
    ("host", "rank"),
];

/// Collects faults, and records the position of each field.
pub(crate) struct Reader<'t> {
    text: &'t str,
    faults: Vec<(usize, Fault)>,
    /// True if paths and positions are recorded. Most files have no faults; without recording they are read in half
    /// of the time.
    records_positions: bool,
    positions: BTreeMap<String, usize>,
}

/// Parses `text` and calls `read` with the document. Returns its result if there were no faults. Otherwise `read`
/// runs again, with positions recorded.
pub(crate) fn read<'t, T>(
    text: &'t str,
    read: impl Fn(&mut Reader<'t>, Fields<'_, 't>) -> Option<T>,
) -> Result<T, Faults> {
    let new = |records_positions| Reader {
        text,
        faults: Vec::new(),
        records_positions,
        positions: BTreeMap::new(),
    };
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let mut reader = new(true);
        // After a syntax error the parsed fields are unreliable, so they are not checked.
        for error in errors {
            let message = error.message().to_string();
            let at = error.span().map_or(0, |s| s.start);
            reader
                .faults
                .push((at, Fault::new("", FaultKind::Syntax { message })));
        }
        return Err(reader.finish());
    }
    let attempt = |records_positions| {
        let mut reader = new(records_positions);
        let fields = Fields {
            path: String::new(),
            at: 0,
            table: document.get_ref(),
            known: Vec::new(),
            old: Vec::new(),
        };
        (read(&mut reader, fields), reader)
    };
    match attempt(false) {
        (Some(value), reader) if reader.faults.is_empty() => Ok(value),
        _ => Err(attempt(true).1.finish()),
    }
}

impl<'t> Reader<'t> {
    pub(crate) fn fault(&mut self, value: &Value<'_, '_>, kind: FaultKind) {
        self.faults.push((value.at, Fault::new(value.path.clone(), kind)));
    }

    /// Records faults of fields at the position of the field, or of the nearest recorded field that contains it.
    pub(crate) fn fault_at_fields(&mut self, faults: impl IntoIterator<Item = Fault>) {
        for fault in faults {
            let mut field = fault.field.as_str();
            let at = loop {
                match (self.positions.get(field), field.rfind(['.', '['])) {
                    (Some(at), _) => break *at,
                    (None, Some(end)) => field = &field[..end],
                    (None, None) => break 0,
                }
            };
            self.faults.push((at, fault));
        }
    }

    /// Records the position of a field and returns its path.
    fn locate(&mut self, at: usize, path: impl FnOnce() -> String) -> String {
        if !self.records_positions {
            return String::new();
        }
        let path = path();
        self.positions.insert(path.clone(), at);
        path
    }

    pub(crate) fn forget_positions(&mut self) {
        self.positions.clear();
    }

    fn finish(mut self) -> Faults {
        self.faults.sort_by_key(|(at, _)| *at);
        let mut cursor = Cursor::new(self.text);
        let faults = self.faults.into_iter().map(|(at, fault)| Fault {
            at: Some(cursor.position(at)),
            ..fault
        });
        Faults {
            file: None,
            faults: faults.collect(),
        }
    }

    /// The fields of a table.
    pub(crate) fn table<'a>(
        &mut self,
        value: &Value<'a, 't>,
        expected: &'static str,
    ) -> Option<Fields<'a, 't>> {
        match value.value {
            DeValue::Table(table) => Some(Fields {
                path: value.path.clone(),
                at: value.at,
                table,
                known: Vec::new(),
                old: Vec::new(),
            }),
            _ => self.wrong_type(value, expected),
        }
    }

    /// The values of an array.
    pub(crate) fn array<'a>(
        &mut self,
        value: &Value<'a, 't>,
        expected: &'static str,
    ) -> Option<Vec<Value<'a, 't>>> {
        let DeValue::Array(array) = value.value else {
            return self.wrong_type(value, expected);
        };
        let values = array.iter().enumerate().map(|(i, item)| {
            let path = self.locate(item.span().start, || format!("{}[{i}]", value.path));
            Value {
                path,
                at: item.span().start,
                value: item.get_ref(),
            }
        });
        Some(values.collect())
    }

    /// An integer within a limit.
    pub(crate) fn number(&mut self, value: &Value<'_, 't>, limit: &Limit) -> Option<u64> {
        let DeValue::Integer(integer) = value.value else {
            return self.wrong_type(value, "a whole number");
        };
        let kind = match u64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) => match limit.admit(number, integer) {
                Ok(number) => return Some(number),
                Err(kind) => kind,
            },
            Err(_) if integer.as_str().starts_with('-') => FaultKind::OutOfRange {
                value: integer.to_string(),
                why: "is negative: give 0 or more",
            },
            Err(_) => limit.fault(integer),
        };
        self.fault(value, kind);
        None
    }

    pub(crate) fn boolean(&mut self, value: &Value<'_, 't>) -> Option<bool> {
        match value.value {
            DeValue::Boolean(boolean) => Some(*boolean),
            _ => self.wrong_type(value, "true or false"),
        }
    }

    pub(crate) fn text<'a>(&mut self, value: &Value<'a, 't>) -> Option<&'a str> {
        match value.value {
            DeValue::String(text) => Some(text),
            _ => self.wrong_type(value, "a text in quotes"),
        }
    }

    /// A string that parses as `T`.
    pub(crate) fn parsed<T: FromStr>(&mut self, value: &Value<'_, 't>, expected: &'static str) -> Option<T> {
        let DeValue::String(text) = value.value else {
            return self.wrong_type(value, expected);
        };
        let parsed = text.parse().ok();
        if parsed.is_none() {
            self.fault(
                value,
                FaultKind::BadText {
                    value: text.to_string(),
                    expected,
                },
            );
        }
        parsed
    }

    fn wrong_type<T>(&mut self, value: &Value<'_, '_>, expected: &'static str) -> Option<T> {
        let found = match value.value {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number with a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.fault(value, FaultKind::WrongType { found, expected });
        None
    }
}

impl<'a, 't> Fields<'a, 't> {
    /// The field, if present, also under an earlier name. Faults below it use the current name.
    pub(crate) fn take(&mut self, reader: &mut Reader<'t>, name: &'static str) -> Option<Value<'a, 't>> {
        self.known.push(name);
        let old = RENAMED.iter().find(|(new, _)| *new == name).map(|(_, old)| *old);
        if let Some(old) = old.filter(|old| !self.table.contains_key(name) && self.table.contains_key(*old)) {
            self.old.push(old);
            return self.value(reader, old, name);
        }
        self.value(reader, name, name)
    }

    /// A field that only earlier versions had.
    pub(crate) fn take_old(&mut self, reader: &mut Reader<'t>, name: &'static str) -> Option<Value<'a, 't>> {
        self.old.push(name);
        self.value(reader, name, name)
    }

    fn value(&self, reader: &mut Reader<'t>, key: &str, name: &str) -> Option<Value<'a, 't>> {
        let value = self.table.get(key)?;
        let path = reader.locate(value.span().start, || join(&self.path, name));
        Some(Value {
            path,
            at: value.span().start,
            value: value.get_ref(),
        })
    }

    /// The field. Records a fault if it is missing.
    pub(crate) fn need(
        &mut self,
        reader: &mut Reader<'t>,
        name: &'static str,
        expected: &'static str,
    ) -> Option<Value<'a, 't>> {
        let value = self.take(reader, name);
        if value.is_none() {
            let fault = Fault::new(join(&self.path, name), FaultKind::Missing { expected });
            reader.faults.push((self.at, fault));
        }
        value
    }

    /// Records a fault of the table itself.
    pub(crate) fn fault(&self, reader: &mut Reader<'t>, kind: FaultKind) {
        reader.faults.push((self.at, Fault::new(self.path.clone(), kind)));
    }

    /// Records a fault for each field that was not taken.
    pub(crate) fn finish(self, reader: &mut Reader<'t>) {
        for (key, _) in self.table {
            let name: &Spanned<_> = key;
            let known = |list: &[&'static str]| list.contains(&name.get_ref().as_ref());
            if !known(&self.known) && !known(&self.old) {
                let suggestion = suggest(name.get_ref(), &self.known).map(str::to_string);
                let kind = FaultKind::UnknownField {
                    suggestion,
                    allowed: self.known.clone(),
                };
                let field = join(&self.path, name.get_ref());
                reader.faults.push((name.span().start, Fault::new(field, kind)));
            }
        }
    }
}

/// Reads an optional field; `absent` if it is missing.
pub(crate) fn optional<'t, T>(
    r: &mut Reader<'t>,
    fields: &mut Fields<'_, 't>,
    name: &'static str,
    absent: T,
    read: impl FnOnce(&mut Reader<'t>, &Value<'_, 't>) -> Option<T>,
) -> Option<T> {
    match fields.take(r, name) {
        Some(value) => read(r, &value),
        None => Some(absent),
    }
}

pub(crate) fn read_port<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<PortId> {
    r.number(value, &Limit::PORT).and_then(|n| PortId::new(n as u8))
}

pub(crate) fn read_psn<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<Psn> {
    r.number(value, &Limit::PSN).map(|n| Psn::new(n as u32))
}

/// A required PSN.
pub(crate) fn needed_psn<'t>(r: &mut Reader<'t>, f: &mut Fields<'_, 't>, name: &'static str) -> Option<Psn> {
    f.need(r, name, "a PSN, 0 to 0xffffff")
        .and_then(|v| read_psn(r, &v))
}

pub(crate) fn read_u32<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<u32> {
    r.number(value, &Limit::U32).map(|n| n as u32)
}

/// The known name that is most similar, if it is similar enough for a typing error.
pub(crate) fn suggest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let edits_max = (name.chars().count() / 3).max(1);
    let name = name.to_lowercase();
    let edits = |known: &&'static str| (strsim::levenshtein(&name, &known.to_lowercase()), *known);
    let best = known.iter().map(edits).min()?;
    (best.0 <= edits_max).then_some(best.1)
}

/// Converts byte offsets to lines and columns in one pass over the text.
struct Cursor<'t> {
    text: &'t str,
    at: usize,
    position: Position,
}

impl<'t> Cursor<'t> {
    const fn new(text: &'t str) -> Self {
        Self {
            text,
            at: 0,
            position: Position { line: 1, column: 1 },
        }
    }

    /// Position of a byte offset. Offsets must not decrease between calls.
    fn position(&mut self, at: usize) -> Position {
        let passed = self.text.get(self.at..at).unwrap_or_default();
        if let Some(end) = passed.rfind('\n') {
            self.position.line += passed.matches('\n').count();
            self.position.column = 1 + passed[end + 1..].chars().count();
        } else {
            self.position.column += passed.chars().count();
        }
        self.at += passed.len();
        self.position
    }
}
