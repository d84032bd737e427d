//! The facts of a report: fields of its JSON, and lines for people.

use castnet_console::output::Page;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// In the order of the lines.
#[derive(Debug, Default)]
pub(super) struct Facts {
    fields: Vec<(&'static str, Value)>,
    lines: Vec<(&'static str, String)>,
}

impl Facts {
    pub(super) fn field(&mut self, key: &'static str, value: impl Into<Value>) {
        self.fields.push((key, value.into()));
    }

    pub(super) fn line(&mut self, label: &'static str, text: impl Into<String>) {
        self.lines.push((label, text.into()));
    }

    pub(super) fn add(&mut self, key: &'static str, label: &'static str, value: impl Into<Value>) {
        let value = value.into();
        self.line(
            label,
            match &value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            },
        );
        self.field(key, value);
    }

    pub(super) fn add_as(
        &mut self,
        key: &'static str,
        value: impl Into<Value>,
        label: &'static str,
        text: impl Into<String>,
    ) {
        self.field(key, value);
        self.line(label, text);
    }

    pub(super) fn page(&self, page: &mut Page) {
        page.facts(&self.lines);
    }
}

impl Serialize for Facts {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.fields.iter().map(|(key, value)| (key, value)))
    }
}
