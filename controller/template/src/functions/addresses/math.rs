//! `math` of `sockaddr`: arithmetic on addresses. Facts: go-sockaddr's `ifaddrs.go`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::unsupported;
use crate::{
    error::{Fault, Outcome},
    query::NodeAddress,
};

/// Offsets of IPv4 addresses have at most this many bits beside their sign.
const OFFSET_BITS_V4: u32 = 32;

/// Applies an operation to an address.
pub(super) fn apply(operation: &str, value: &str, address: &mut NodeAddress) -> Outcome<()> {
    let is_v4 = address.address.is_ipv4();
    let width: u32 = if is_v4 { 32 } else { 128 };
    let (number, prefix) = (bits(address.address), u32::from(address.prefix).min(width));
    let host = ones(width - prefix);
    let found = match operation.to_lowercase().as_str() {
        "address" => number.wrapping_add(offset(value, width)?),
        // A negative offset counts from the last address of the network, and both wrap within the network.
        "network" => (number & !host).wrapping_add(offset(value, width)? & host),
        "mask" => {
            let length = mask(value, width)?;
            address.prefix = u8::try_from(length.min(prefix)).unwrap_or(address.prefix);
            number & !ones(width - length)
        }
        _ => return Err(unsupported("the operation of `math`")),
    };
    address.address = match is_v4 {
        true => IpAddr::V4(Ipv4Addr::from_bits((found & ones(32)) as u32)),
        false => IpAddr::V6(Ipv6Addr::from_bits(found)),
    };
    Ok(())
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// That many ones at the end.
fn ones(count: u32) -> u128 {
    u128::MAX.checked_shr(128 - count.min(128)).unwrap_or(0)
}

/// A number with a sign, in two's complement.
fn offset(value: &str, width: u32) -> Outcome<u128> {
    if !value.starts_with(['+', '-']) {
        return Err(Fault::new("`math` needs a value with a sign, such as +1"));
    }
    let number: i64 = value.parse().map_err(|_| unsupported("the value of `math`"))?;
    let bound = 1_i64 << OFFSET_BITS_V4;
    if width == 32 && !(-bound..bound).contains(&number) {
        return Err(unsupported("the value of `math`"));
    }
    Ok(i128::from(number).cast_unsigned())
}

fn mask(value: &str, width: u32) -> Outcome<u32> {
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    let length = value.parse::<u32>().ok().filter(|length| is_number && *length <= width);
    length.ok_or_else(|| unsupported("the length of the mask"))
}
