//! Devices of a node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Devices of one kind.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeDevices {
    /// Who makes them.
    pub vendor: String,
    /// Such as `gpu`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// The model.
    pub name: String,
    /// Each one.
    pub instances: Vec<Device>,
    /// What constraints ask about.
    pub attributes: BTreeMap<String, Attribute>,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Device {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Whether it works.
    pub healthy: bool,
    /// Why not.
    pub health_description: String,
    /// Where it is.
    pub locality: Option<Locality>,
}

/// Where a device is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Locality {
    /// On the PCI bus.
    #[serde(rename = "PciBusID")]
    pub pci_bus_id: String,
}

/// A value with a unit; one of the four.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Attribute {
    /// A number.
    pub float: Option<f64>,
    /// An integer.
    pub int: Option<i64>,
    /// A text.
    pub string: Option<String>,
    /// A boolean.
    pub bool: Option<bool>,
    /// Such as `MiB`.
    pub unit: String,
}
