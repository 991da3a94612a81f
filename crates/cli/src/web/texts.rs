//! What the web servers of a lab and their balancers are told (pure).

use super::{DATABASE_PORT, HTTP_PORT, SitePlaces, WORKERS};
use keeptime_model::topology::Node;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;

/// The nginx of a node: files, and the page that PHP computes. It also listens on a socket in `own`, the
/// node's directory, where its readiness is seen from outside.
pub fn server(own: &Path, pages: &Path, database: Ipv4Addr) -> String {
    let (own, pages) = (own.display(), pages.display());
    let mut text = format!(
        "user root;\nworker_processes 1;\ndaemon off;\npid {own}/nginx.pid;\nerror_log {own}/nginx.log;\n\
         events {{ worker_connections 512; }}\nhttp {{\n  access_log off;\n  default_type text/html;\n  \
         keepalive_requests 1000000;\n"
    );
    text += &temporary("/tmp");
    let _ = write!(
        text,
        "  server {{\n    listen {HTTP_PORT};\n    listen unix:{own}/http.sock;\n    root {pages};\n    \
         location = /page {{\n      fastcgi_pass unix:{own}/php.sock;\n"
    );
    for (name, value) in [
        ("SCRIPT_FILENAME", format!("{pages}/page.php")),
        ("QUERY_STRING", "$query_string".into()),
        ("REQUEST_METHOD", "$request_method".into()),
        ("CONTENT_TYPE", "$content_type".into()),
        ("CONTENT_LENGTH", "$content_length".into()),
        ("DATABASE_ADDRESS", database.to_string()),
        ("DATABASE_PORT", DATABASE_PORT.to_string()),
    ] {
        let _ = writeln!(text, "      fastcgi_param {name} {value};");
    }
    text += "    }\n  }\n}\n";
    text
}

/// The PHP of a node: so many pages are computed at a time.
pub fn php(own: &Path) -> String {
    let own = own.display();
    format!(
        "[global]\ndaemonize = no\nerror_log = {own}/php.log\npid = {own}/php.pid\n[web]\nuser = root\n\
         group = root\nlisten = {own}/php.sock\npm = static\npm.max_children = {WORKERS}\n"
    )
}

/// An HAProxy in front of all sites: it hands a node as many requests as it computes at a time, and has the
/// others wait.
pub fn haproxy(directory: &Path, sites: &[SitePlaces], nodes: &[Node]) -> String {
    let own = directory.display();
    let mut text = format!(
        "global\n  stats socket {own}/haproxy.sock level admin expose-fd listeners\n  nbthread 1\n  maxconn 4000\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 120s\n  \
         timeout server 120s\n  timeout queue 120s\n  retries 0\n"
    );
    for site in sites {
        let (name, address) = (&site.name, site.haproxy);
        let _ = write!(
            text,
            "frontend {name}-in\n  bind {address}\n  default_backend {name}\nbackend {name}\n  \
             balance roundrobin\n"
        );
        for (node, address) in with_addresses(nodes) {
            let _ = writeln!(
                text,
                "  server {node} {address}:{HTTP_PORT} disabled weight 100 maxconn {WORKERS}"
            );
        }
    }
    text
}

/// An nginx in front of all sites, whose upstreams are files beside this one. Connections that clients keep
/// would be closed by each reload, perhaps just when one sends an order.
pub fn nginx(directory: &Path, sites: &[SitePlaces]) -> String {
    let own = directory.display();
    let mut text = format!(
        "user root;\nworker_processes 1;\ndaemon off;\npid {own}/nginx.pid;\nerror_log {own}/nginx.log;\n\
         events {{ worker_connections 2048; }}\nhttp {{\n  log_format keeptime '$upstream_addr';\n  \
         keepalive_timeout 0;\n"
    );
    text += &temporary(&directory.display().to_string());
    for site in sites {
        let (name, address, log) = (&site.name, site.nginx, site.log);
        let _ = write!(
            text,
            "  include {name}.upstream;\n  server {{\n    listen {address};\n    \
             access_log syslog:server={log} keeptime;\n    \
             location / {{ proxy_pass http://{name}; proxy_next_upstream off; }}\n  }}\n"
        );
    }
    text += "}\n";
    text
}

/// An Apache in front of all sites. One process with many threads: one whose threads are all at work closes the
/// connections that clients keep, perhaps just when one sends an order.
pub fn apache(directory: &Path, sites: &[SitePlaces], nodes: &[Node]) -> String {
    let own = directory.display();
    let mut text = format!(
        "ServerRoot {own}\nDefaultRuntimeDir {own}\nPidFile {own}/apache.pid\nErrorLog {own}/apache.log\n\
         ServerName front-end\nUser nobody\nGroup nogroup\nMaxKeepAliveRequests 0\nProxyTimeout 120\n\
         ServerLimit 1\nStartServers 1\nThreadLimit 512\nThreadsPerChild 512\nMaxRequestWorkers 512\n"
    );
    for module in [
        "mpm_event",
        "authz_core",
        "authz_host",
        "proxy",
        "proxy_http",
        "proxy_balancer",
        "slotmem_shm",
        "lbmethod_byrequests",
    ] {
        let _ =
            writeln!(text, "LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so");
    }
    for site in sites {
        let (name, address) = (&site.name, site.apache);
        let _ = write!(
            text,
            "Listen {address}\n<VirtualHost {address}>\n  <Proxy balancer://{name}>\n"
        );
        for (_, address) in with_addresses(nodes) {
            let _ = writeln!(text, "    BalancerMember http://{address}:{HTTP_PORT} status=+D");
        }
        let _ = write!(
            text,
            "  </Proxy>\n  <Location /balancer-manager>\n    SetHandler balancer-manager\n    \
             Require local\n  </Location>\n  ProxyPass /balancer-manager !\n  \
             ProxyPass / balancer://{name}/\n</VirtualHost>\n"
        );
    }
    text
}

/// Where an nginx keeps what it cannot keep in memory.
fn temporary(directory: &str) -> String {
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    kinds.map(|kind| format!("  {kind}_temp_path {directory}/nginx-{kind};\n")).concat()
}

/// Every node of a lab has an address.
fn with_addresses(nodes: &[Node]) -> impl Iterator<Item = (&str, Ipv4Addr)> {
    nodes.iter().filter_map(|node| Some((node.name.as_str(), node.address?)))
}
