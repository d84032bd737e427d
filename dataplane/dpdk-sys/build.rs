//! Finds DPDK by pkg-config and compiles the shim with the flags that it reports. They include `-include
//! rte_config.h` and `-march=...`, which affect the layout in DPDK's headers.

fn main() {
    println!("cargo::rerun-if-changed=shim/shim.c");
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "dpdk")]
    if let Err(reason) = dpdk::build() {
        println!("cargo::error={reason}");
        std::process::exit(1);
    }
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use std::process::Command;

    /// The oldest supported version. The mbufs of older versions have another layout.
    const OLDEST: &str = "22.11";

    pub(crate) fn build() -> Result<(), String> {
        println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
        pkg_config(&[&format!("--atleast-version={OLDEST}")]).map_err(|_| {
            let found = pkg_config(&["--modversion"]).map_or("none".to_owned(), |v| v.join(" "));
            format!(
                "the feature `dpdk` needs DPDK {OLDEST} or later, found by pkg-config ({found} is there): \
                 apt-get install libdpdk-dev pkg-config, or set PKG_CONFIG_PATH"
            )
        })?;
        let mut shim = cc::Build::new();
        shim.file("shim/shim.c").opt_level(3).warnings(true);
        for flag in pkg_config(&["--cflags"])? {
            shim.flag(flag);
        }
        shim.try_compile("castnet_dpdk_shim").map_err(|e| e.to_string())?;
        for flag in pkg_config(&["--libs"])? {
            if let Some(library) = flag.strip_prefix("-l") {
                println!("cargo::rustc-link-lib=dylib={library}");
            } else if let Some(folder) = flag.strip_prefix("-L") {
                println!("cargo::rustc-link-search=native={folder}");
            }
        }
        Ok(())
    }

    fn pkg_config(arguments: &[&str]) -> Result<Vec<String>, String> {
        let program = std::env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
        let output = Command::new(&program)
            .args(arguments)
            .arg("libdpdk")
            .output()
            .map_err(|e| format!("cannot run {program}: {e}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.split_whitespace().map(str::to_owned).collect())
    }
}
