//! Tables, whose fields are taken one by one.

use std::cell::RefCell;
use std::collections::BTreeSet;

use toml::de::DeTable;

use crate::Value;
use crate::value::join;

/// A table that is being read. On drop, the fields that were not taken are recorded as unknown.
pub struct Table<'a> {
    pub(crate) value: Value<'a>,
    pub(crate) table: &'a DeTable<'a>,
    /// Fields that were taken.
    pub(crate) known: RefCell<Vec<&'static str>>,
    /// Accepted, but not suggested.
    pub(crate) old: RefCell<Vec<&'a str>>,
}

impl<'a> Table<'a> {
    /// Takes an optional field.
    pub fn value(&self, name: &'static str) -> Option<Value<'_>> {
        self.known.borrow_mut().push(name);
        self.find(name)
    }

    /// Takes a field of earlier versions.
    pub fn old_value(&self, name: &'static str) -> Option<Value<'_>> {
        self.old.borrow_mut().push(name);
        self.find(name)
    }

    fn find(&self, name: &'static str) -> Option<Value<'_>> {
        let (key, value) = self.value.reader.field(self.table, name)?;
        if key != name {
            self.old.borrow_mut().push(key);
        }
        Some(self.value.field(name, value))
    }

    /// Reads an optional field. `None` if it is missing or has a fault.
    pub fn get<'t, T>(&'t self, name: &'static str, read: impl FnOnce(Value<'t>) -> Option<T>) -> Option<T> {
        self.value(name).and_then(read)
    }

    /// Reads an optional field; `absent` if it is missing.
    pub fn optional<'t, T>(
        &'t self,
        name: &'static str,
        absent: T,
        read: impl FnOnce(Value<'t>) -> Option<T>,
    ) -> Option<T> {
        self.value(name).map_or(Some(absent), read)
    }

    /// Reads a required field. If it is missing, the fault says `expected`.
    pub fn need<'t, T>(
        &'t self,
        name: &'static str,
        expected: &str,
        read: impl FnOnce(Value<'t>) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(name);
        if value.is_none() {
            self.fault_at(name, format_args!("missing: {expected}"));
        }
        value.and_then(read)
    }

    /// Reads an optional list, without the items for which `read` returns `None`.
    pub fn items<T>(
        &self,
        name: &'static str,
        expected: &str,
        read: impl FnMut(Value<'_>) -> Option<T>,
    ) -> Vec<T> {
        let items = self.get(name, |v| Some(v.list(expected)?.filter_map(read).collect()));
        items.unwrap_or_default()
    }

    /// See [`Value::faulty`].
    pub fn faulty(&self) -> BTreeSet<String> {
        self.value.faulty()
    }

    /// See [`Value::fault_at`].
    pub fn fault_at(&self, path: &str, message: impl std::fmt::Display) {
        self.value.fault_at(path, message);
    }

    /// The value of `result`, or a fault of the field at `path`.
    pub fn accept_at<T>(&self, path: &str, result: Result<T, impl std::fmt::Display>) -> Option<T> {
        result.map_err(|error| self.fault_at(path, error)).ok()
    }

    /// Accepts all fields, known or not.
    pub fn accept_all(&self) {
        let names = self.table.iter().map(|(key, _)| key.get_ref().as_ref());
        self.old.borrow_mut().extend(names);
    }
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        let (known, old): (&[&str], &[&str]) = (&self.known.borrow(), &self.old.borrow());
        for (key, _) in self.table {
            let name = key.get_ref().as_ref();
            if known.contains(&name) || old.contains(&name) {
                continue;
            }
            let meant =
                suggest(name, known).map_or(String::new(), |known| format!(", did you mean {known:?}?"));
            let message = format!("unknown field{meant}; allowed: {}", known.join(", "));
            let field = join(&self.value.path(), name);
            self.value.reader.fault(key.span().start, field, message);
        }
    }
}

/// The most similar known name, if it is similar enough for a typing error.
fn suggest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let edits_max = (name.chars().count() / 3).max(1);
    let name = name.to_lowercase();
    let edits = |known: &&'k str| (strsim::levenshtein(&name, &known.to_lowercase()), *known);
    let best = known.iter().map(edits).min()?;
    (best.0 <= edits_max).then_some(best.1)
}
