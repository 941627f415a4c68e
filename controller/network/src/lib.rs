//! Networks of allocations, made through the kernel's own interfaces: rtnetlink, nf_tables, namespaces, sysctls.
//!
//! In: descriptions of networks. Out: namespaces, links, addresses, routes and rules, made or removed. It is
//! independent of jobs, tasks and the planner, and needs no other program. Everything is found again by its name, so each function may be repeated:
//! it makes what is missing, and corrects what differs. All functions block for a moment; callers use threads for them.
//!
//! | module | contents |
//! | --- | --- |
//! | [`message`] | netlink messages: encoding and reading |
//! | [`socket`] | requests to the kernel and their answers |
//! | [`namespace`] | network namespaces, and the files that keep them |
//! | [`link`] | bridges and pairs of virtual interfaces |
//! | [`address`] | addresses of interfaces |
//! | [`route`] | routes |
//! | [`sysctl`], [`changed_settings`] | settings of the kernel; those of the machine that were changed |
//! | [`nft`] | messages of nf_tables |
//! | [`firewall`] | the rules of an instance, with mapped ports |
//! | [`foreign`], `legacy_tables` | rules that let a bridge's packets through chains of others; tables of iptables-legacy |
//! | [`subnet`], [`address_pool`] | the addresses of a bridge, and who has which |
//! | [`ports`], [`port_owner`] | sockets that hold mapped ports; the process that has a port |
//! | [`host`] | what the machine's own network demands of a bridge |
//! | [`watch`] | changes by others: of links and addresses in all namespaces, of rules |
//! | [`networks`] | whole networks of allocations |

pub mod address;
pub mod address_pool;
pub mod changed_settings;
mod conntrack;
pub mod firewall;
pub mod foreign;
pub mod host;
mod legacy_tables;
pub mod link;
pub mod message;
pub mod namespace;
pub mod networks;
pub mod nft;
pub mod port_owner;
pub mod ports;
pub mod reports;
pub mod route;
pub mod socket;
pub mod subnet;
pub mod sysctl;
#[cfg(any(test, feature = "fixture"))]
pub mod test_machine;
pub mod watch;
