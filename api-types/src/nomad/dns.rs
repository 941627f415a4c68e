//! `DNS` of a network, in jobs and in assigned resources.

use serde_json::{Value, json};

use crate::job::Dns;

/// Converts how tasks resolve names; null if it is as on the machine.
pub(super) fn dns(Dns { servers, searches, options }: &Dns) -> Value {
    let all = [servers, searches, options];
    if all.iter().all(|list| list.is_empty()) {
        return Value::Null;
    }
    json!({ "Servers": servers, "Searches": searches, "Options": options })
}
