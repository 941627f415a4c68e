//! The fields of a call, by name.

use herdlet_rpc::codec::Value;

/// The fields of a call. A dot in a name separates nested fields.
#[derive(Default)]
pub(super) struct CallFields(Vec<(Value, Value)>);

impl CallFields {
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(key, _)| key.as_text() == Some(name)).map(|(_, value)| value)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn put(&mut self, name: &str, value: Value) {
        let mut fields = &mut self.0;
        let mut names = name.split('.').peekable();
        while let Some(name) = names.next() {
            let at = fields.iter().position(|(key, _)| key.as_text() == Some(name)).unwrap_or_else(|| {
                fields.push((text(name), Value::Nil));
                fields.len() - 1
            });
            let Some((_, field)) = fields.get_mut(at) else { return };
            if names.peek().is_none() {
                *field = value;
                return;
            }
            if !matches!(field, Value::Map(_)) {
                *field = Value::Map(Vec::new());
            }
            let Value::Map(inner) = field else { return };
            fields = inner;
        }
    }

    /// Adds all fields of a map.
    pub(super) fn extend(&mut self, of: Value) {
        if let Value::Map(of) = of {
            self.0.extend(of);
        }
    }

    /// Adds a map as a field; existing fields in it take precedence.
    pub(super) fn under(&mut self, name: &str, value: Value) {
        let over = self.get(name).cloned();
        self.put(name, value);
        if let Some(Value::Map(over)) = over {
            for (key, value) in over {
                self.put(&format!("{name}.{}", key.as_text().unwrap_or_default()), value);
            }
        }
    }
}

impl From<CallFields> for Value {
    fn from(fields: CallFields) -> Self {
        Self::Map(fields.0)
    }
}

pub(super) fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}
