//! Platforms that images are built for.
//!
//! In: a platform as documents write it, this machine. Out: whether the machine runs it, and which of several it prefers.

use std::fmt;

use serde::Deserialize;

/// An operating system and a processor, under Go's names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Platform {
    pub os: String,
    pub architecture: String,
    /// The version of the architecture, such as `v7`; empty for the first one.
    pub variant: String,
}

impl Platform {
    /// A platform in the usual notation: other names of an architecture, and variants without a meaning, are replaced.
    #[must_use]
    pub fn normalized(&self) -> Self {
        let lower = |text: &str| text.trim().to_ascii_lowercase();
        let (os, architecture, variant) = (lower(&self.os), lower(&self.architecture), lower(&self.variant));
        let (architecture, variant) = match (&*architecture, &*variant) {
            ("x86_64" | "x86-64" | "amd64", "v1") | ("x86_64" | "x86-64", "") => ("amd64", ""),
            ("x86_64" | "x86-64", variant) => ("amd64", variant),
            ("i386" | "i486" | "i586" | "i686", _) => ("386", ""),
            ("aarch64" | "arm64", "8" | "v8") | ("aarch64", "") => ("arm64", ""),
            ("aarch64", variant) => ("arm64", variant),
            ("armhf", _) | ("arm", "" | "7") => ("arm", "v7"),
            ("armel", _) | ("arm", "6") => ("arm", "v6"),
            ("arm", "5") => ("arm", "v5"),
            ("arm", "8") => ("arm", "v8"),
            same => same,
        };
        Self { os, architecture: architecture.to_owned(), variant: variant.to_owned() }
    }

    /// Whether it is the platform of a document that describes other documents, such as the record of a build.
    pub fn is_unknown(&self) -> bool {
        self.os == "unknown" && self.architecture == "unknown"
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &*self.variant {
            "" => Ok(()),
            variant => write!(f, "/{variant}"),
        }
    }
}

/// The platforms that a machine runs, the preferred one first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platforms(Vec<Platform>);

impl Platforms {
    /// Those of this machine.
    pub fn of_machine() -> Self {
        Self::of_processor(std::env::consts::ARCH, x86_level())
    }

    /// Those of Linux on a processor; `level` is the version of x86-64 that it has.
    fn of_processor(architecture: &str, level: u8) -> Self {
        let of = |architecture: &str, variant: &str| Platform {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.to_owned(),
        };
        Self(match architecture {
            "x86_64" => {
                let newer = (2..=level).rev().map(|level| of("amd64", &format!("v{level}")));
                newer.chain([of("amd64", ""), of("386", "")]).collect()
            }
            // Not every such processor runs programs of 32 bits; the kernel refuses them then.
            "aarch64" => {
                let older = ["v8", "v7", "v6", "v5"].map(|variant| of("arm", variant));
                [of("arm64", "")].into_iter().chain(older).collect()
            }
            other => vec![of(other, "").normalized()],
        })
    }

    /// The place of a platform in the order of preference; none if it does not run here.
    pub fn rank(&self, platform: &Platform) -> Option<usize> {
        let platform = platform.normalized();
        self.0.iter().position(|known| *known == platform)
    }

    /// The preferred one, for people.
    pub fn first(&self) -> String {
        self.0
            .iter()
            .find(|known| known.variant.is_empty())
            .or(self.0.first())
            .map_or_else(String::new, Platform::to_string)
    }
}

/// The version of x86-64 that this processor has (the psABI's levels).
#[cfg(target_arch = "x86_64")]
fn x86_level() -> u8 {
    use std::arch::is_x86_feature_detected as has;
    if !(has!("cmpxchg16b")
        && has!("popcnt")
        && has!("sse3")
        && has!("ssse3")
        && has!("sse4.1")
        && has!("sse4.2"))
    {
        return 1;
    }
    let is_third = has!("avx") && has!("avx2") && has!("bmi1") && has!("bmi2") && has!("f16c") && has!("fma");
    if !(is_third && has!("lzcnt") && has!("movbe")) {
        return 2;
    }
    let is_fourth =
        has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
    if is_fourth { 4 } else { 3 }
}

#[cfg(not(target_arch = "x86_64"))]
fn x86_level() -> u8 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        let mut parts = text.split('/').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        Platform { os: next(), architecture: next(), variant: next() }
    }

    #[test]
    fn platforms_have_one_notation() {
        for (written, normal) in [
            ("Linux/x86_64", "linux/amd64"),
            ("linux/amd64/v1", "linux/amd64"),
            ("linux/amd64/v3", "linux/amd64/v3"),
            ("linux/i686", "linux/386"),
            ("linux/aarch64", "linux/arm64"),
            ("linux/arm64/v8", "linux/arm64"),
            ("linux/arm64/v9", "linux/arm64/v9"),
            ("linux/arm", "linux/arm/v7"),
            ("linux/arm/7", "linux/arm/v7"),
            ("linux/armhf", "linux/arm/v7"),
            ("linux/armel", "linux/arm/v6"),
            ("linux/riscv64", "linux/riscv64"),
        ] {
            assert_eq!(platform(written).normalized().to_string(), normal, "{written}");
            assert_eq!(platform(normal).normalized().to_string(), normal, "{normal}");
        }
    }

    #[test]
    fn a_machine_prefers_its_own_and_newest_platform() {
        let order =
            |platforms: &Platforms, written: [&str; 4]| written.map(|text| platforms.rank(&platform(text)));
        let third = Platforms::of_processor("x86_64", 3);
        let written = ["linux/amd64/v3", "linux/amd64/v2", "linux/amd64", "linux/386"];
        assert_eq!(order(&third, written), [Some(0), Some(1), Some(2), Some(3)]);
        let none = ["linux/amd64/v4", "windows/amd64", "linux/arm64", "unknown/unknown"];
        assert_eq!(order(&third, none), [None; 4]);
        assert_eq!(third.first(), "linux/amd64");
        let first = Platforms::of_processor("x86_64", 1);
        assert_eq!(order(&first, written), [None, None, Some(0), Some(1)]);
        let arm = Platforms::of_processor("aarch64", 1);
        let written = ["linux/arm64/v8", "linux/arm/v7", "linux/arm/v6", "linux/amd64"];
        assert_eq!(order(&arm, written), [Some(0), Some(2), Some(3), None]);
        assert!(Platforms::of_machine().rank(&Platforms::of_machine().0[0]).is_some());
    }
}
