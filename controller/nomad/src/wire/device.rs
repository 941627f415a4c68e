//! Devices of a node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Devices of one kind.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeDevices {
    /// The manufacturer.
    pub vendor: String,
    /// For example `gpu`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// The model.
    pub name: String,
    /// The devices.
    pub instances: Vec<Device>,
    /// Attributes for constraints.
    pub attributes: BTreeMap<String, Attribute>,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Device {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Whether it is healthy.
    pub healthy: bool,
    /// The reason.
    pub health_description: String,
    /// Its location.
    pub locality: Option<Locality>,
}

/// The location of a device.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Locality {
    /// The PCI bus id.
    #[serde(rename = "PciBusID")]
    pub pci_bus_id: String,
}

/// A value with an optional unit; one of the four fields is set.
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
    /// For example `MiB`.
    pub unit: String,
}
