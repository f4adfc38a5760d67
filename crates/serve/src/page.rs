//! The files of the page, which are compiled in. They load nothing from other servers.

#[derive(Debug)]
pub struct Asset {
    /// Path in the URL.
    pub path: &'static str,
    pub content_type: &'static str,
    pub text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

pub const ASSETS: &[Asset] = &[
    Asset {
        path: "/",
        content_type: "text/html; charset=utf-8",
        text: include_str!("page/index.html"),
    },
    Asset {
        path: "/style.css",
        content_type: "text/css; charset=utf-8",
        text: include_str!("page/style.css"),
    },
    Asset {
        path: "/app.js",
        content_type: SCRIPT,
        text: include_str!("page/app.js"),
    },
    Asset {
        path: "/news.js",
        content_type: SCRIPT,
        text: include_str!("page/news.js"),
    },
    Asset {
        path: "/chart.js",
        content_type: SCRIPT,
        text: include_str!("page/chart.js"),
    },
    Asset {
        path: "/replica.js",
        content_type: SCRIPT,
        text: include_str!("page/replica.js"),
    },
    Asset {
        path: "/failover.js",
        content_type: SCRIPT,
        text: include_str!("page/failover.js"),
    },
    Asset {
        path: "/pool.js",
        content_type: SCRIPT,
        text: include_str!("page/pool.js"),
    },
    Asset {
        path: "/servers.js",
        content_type: SCRIPT,
        text: include_str!("page/servers.js"),
    },
    Asset {
        path: "/topology.js",
        content_type: SCRIPT,
        text: include_str!("page/topology.js"),
    },
    Asset {
        path: "/incidents.js",
        content_type: SCRIPT,
        text: include_str!("page/incidents.js"),
    },
    Asset {
        path: "/write.js",
        content_type: SCRIPT,
        text: include_str!("page/write.js"),
    },
    Asset {
        path: "/icon.svg",
        content_type: "image/svg+xml",
        text: include_str!("page/icon.svg"),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The page loads no script, style or picture from other servers, has no inline code, and
    /// never turns text into HTML.
    #[test]
    fn assets_are_self_contained() {
        for asset in ASSETS {
            for line in asset.text.lines() {
                let line = line.replace("http://www.w3.org/2000/svg", "");
                for never in ["//cdn", "http://", "https://", "innerHTML", "outerHTML"] {
                    assert!(!line.contains(never), "{}: {line}", asset.path);
                }
                for never in ["insertAdjacentHTML", "document.write", "eval(", " style=\""] {
                    assert!(!line.contains(never), "{}: {line}", asset.path);
                }
            }
        }
    }
}
