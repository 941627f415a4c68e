//! `herdlet get node`: this machine's attributes, as constraints name them.
//!
//! In: the node in Nomad's JSON. Out: possible values of `attribute` in a constraint, with their
//! values on this machine.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Form, ListRequest, ObjectKind};
use crate::{
    failure::Failure,
    show,
    table::{Heading, Table},
};

pub(super) async fn print(wanted: &ListRequest<'_>) -> Result<(), Failure> {
    let node = wanted.client.node().await?;
    let attributes = attributes(&node);
    match wanted.form {
        Form::Json => show::json(&node),
        Form::Yaml => show::yaml(&attributes),
        Form::Name => {
            attributes.into_keys().for_each(|name| show::out(&format!("{name}\n")));
            Ok(())
        }
        Form::Custom => {
            let text = wanted.shape.render(std::slice::from_ref(&node), wanted.heading);
            show::out(&text.unwrap_or_default());
            Ok(())
        }
        Form::Table | Form::Wide if attributes.is_empty() => {
            herdlet_base::stderr_line!("{}", ObjectKind::Node.none());
            Ok(())
        }
        Form::Table | Form::Wide => {
            if wanted.heading == Heading::Shown {
                show::out(&format!("{}\n", itself(&node).render(Heading::Shown)));
            }
            let mut table = Table::new(&["ATTRIBUTE", "VALUE"]);
            attributes.into_iter().for_each(|(name, value)| table.row([name, value]));
            show::out(&table.render(wanted.heading));
            Ok(())
        }
    }
}

/// The node as a table, as in Nomad's `node status`.
fn itself(node: &Value) -> Table {
    let columns = [
        ("ID", "ID"),
        ("NAME", "Name"),
        ("DATACENTER", "Datacenter"),
        ("POOL", "NodePool"),
        ("CLASS", "NodeClass"),
        ("DRAIN", "Drain"),
        ("ELIGIBILITY", "SchedulingEligibility"),
        ("STATUS", "Status"),
    ];
    let mut table = Table::new(&columns.map(|(heading, _)| heading));
    table.row(columns.map(|(_, field)| match &node[field] {
        Value::String(text) if !text.is_empty() => text.clone(),
        Value::Bool(flag) => flag.to_string(),
        Value::Null | Value::String(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            "-".to_owned()
        }
    }));
    table
}

/// What constraints can name, with this machine's values.
fn attributes(node: &Value) -> BTreeMap<String, String> {
    let named = [
        ("node.unique.id", "ID"),
        ("node.unique.name", "Name"),
        ("node.datacenter", "Datacenter"),
        ("node.class", "NodeClass"),
        ("node.pool", "NodePool"),
    ];
    let own = named.iter().map(|(name, field)| ((*name).to_owned(), &node[*field]));
    let fields = |field: &str| node[field].as_object().into_iter().flat_map(Map::iter);
    let attributes = fields("Attributes").map(|(name, value)| (format!("attr.{name}"), value));
    let meta = fields("Meta").map(|(name, value)| (format!("meta.{name}"), value));
    own.chain(attributes)
        .chain(meta)
        .filter_map(|(name, value)| Some((format!("${{{name}}}"), value.as_str()?.to_owned())))
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn node_attributes_are_listed_as_constraint_names() {
        let node = json!({ "Datacenter": "dc1", "NodeClass": "", "Attributes": { "cpu.arch": "amd64" }, "Meta": { "rack": "r1" } });
        let lines: Vec<String> =
            attributes(&node).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        let shown = json!({
            "ID": "n1", "Name": "box", "Datacenter": "dc1", "NodePool": "default", "NodeClass": "", "Drain": false,
            "SchedulingEligibility": "eligible", "Status": "ready",
        });
        assert_eq!(
            itself(&shown).render(Heading::Shown),
            "ID  NAME  DATACENTER  POOL     CLASS  DRAIN  ELIGIBILITY  STATUS\nn1  box   dc1         default  -      false  eligible     ready\n"
        );
        assert_eq!(lines, ["${attr.cpu.arch}=amd64", "${meta.rack}=r1", "${node.datacenter}=dc1"]);
    }
}
