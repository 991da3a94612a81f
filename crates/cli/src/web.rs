//! The web servers of a lab that was made with them, as an operator would have set them up: on every node an
//! nginx with files and a page that PHP computes from a database; on the front end that database (MariaDB), and
//! an HAProxy, an nginx and an Apache in front of every site. Which node serves which site, the broker tells
//! them. All of it ends with the lab.

mod texts;

use crate::cluster::own_path;
use anyhow::{Context, Result, bail, ensure};
use keeptime_balancers::nginx::Nginx;
use keeptime_balancers::traffic::Server;
use keeptime_lab::{Exec, FRONT_END, Lab};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::service::ServiceName;
use keeptime_model::site::BalancerPlace;
use keeptime_model::topology::Node;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Pages that a node computes at a time.
pub const WORKERS: u32 = 2;
/// Where servers listen on the nodes.
pub const HTTP_PORT: u16 = 80;
/// Files `1.html`, `2.html`, …: the r-th most popular one is `r.html`.
pub const FILES: usize = 100;
/// Each has its own ports.
pub const SITES_MAX: usize = 16;

/// The services that serve on the nodes.
const NGINX: &str = "nginx";
const PHP: &str = "php-fpm";

const DATABASE_PORT: u16 = 3306;
const FABRIC_PORT: u16 = 7400;
/// MariaDB makes its files first: a second where nothing else runs, and much longer on nodes with little CPU.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Where a site is reached, and its balancers by the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SitePlaces {
    /// The site.
    pub name: Name,
    /// Behind HAProxy.
    pub haproxy: SocketAddr,
    /// Behind nginx.
    pub nginx: SocketAddr,
    /// Behind Apache.
    pub apache: SocketAddr,
    /// Where nginx sends its access log.
    log: SocketAddr,
}

/// What serves on a lab's nodes, as [`SiteSpec::services`](keeptime_model::site::SiteSpec::services).
///
/// # Errors
/// Never: they are names.
pub fn services() -> Result<Vec<ServiceName>, Invalid> {
    [NGINX, PHP].iter().map(|name| name.parse()).collect()
}

/// The web servers of one lab.
#[derive(Debug)]
pub struct Web {
    directory: PathBuf,
    /// Each site that its balancers know.
    pub sites: Vec<SitePlaces>,
}

impl Web {
    /// What the distribution has of it is installed.
    ///
    /// # Errors
    /// The first program that is not.
    pub fn check_programs() -> Result<()> {
        Programs::find().map(drop)
    }

    /// The names are right for a lab's sites.
    ///
    /// # Errors
    /// What would be accepted.
    pub fn check(sites: &[Name]) -> Result<(), Invalid> {
        let count = sites.len();
        if count > SITES_MAX {
            return Err(Invalid::new("web", count, format!("at most {SITES_MAX} sites")));
        }
        let twice = |at: &usize| sites[..*at].contains(&sites[*at]);
        match (0..count).find(twice) {
            Some(at) => Err(Invalid::new("web", &sites[at], "each site once")),
            None => Ok(()),
        }
    }

    /// What is or will be in `lab` for `sites`.
    pub fn of(lab: &Lab, sites: &[Name]) -> Self {
        let host = lab.front_end();
        let at = |base: u16, at: u16| SocketAddr::from((host, base + at));
        let places = |(number, name): (u16, &Name)| SitePlaces {
            name: name.clone(),
            haproxy: at(8_001, number),
            nginx: at(8_101, number),
            apache: at(8_201, number),
            log: at(5_140, number),
        };
        let sites = (0..).zip(sites).map(places).collect();
        Self { directory: directory(lab.directory()), sites }
    }

    /// The balancers of a site, as the broker is told them: HAProxy, nginx, Apache.
    pub fn balancers(&self, site: &SitePlaces) -> [BalancerPlace; 3] {
        let name = site.name.to_string();
        [
            BalancerPlace::HaProxy { socket: self.socket(), backend: name.clone() },
            BalancerPlace::Nginx {
                configuration: self.edge("nginx.conf"),
                upstream: name.clone(),
                log: site.log,
            },
            BalancerPlace::Apache {
                manager: site.apache,
                path: "/balancer-manager".into(),
                balancer: name,
            },
        ]
    }

    /// The database's own socket, for whoever counts orders: user root, database `shop`. Whoever made the lab reaches
    /// it, and nobody else.
    pub fn database(&self) -> PathBuf {
        self.database_directory().join("socket")
    }

    /// What the database has, where no other user of this machine looks.
    fn database_directory(&self) -> PathBuf {
        self.directory.join("database")
    }

    /// Starts everything and waits until all of it answers.
    ///
    /// # Errors
    /// A program that is not installed, or one that does not answer, with the last lines of its log.
    pub fn start(&self, lab: &Lab) -> Result<()> {
        let (programs, fabricd) = (Programs::find()?, fabricd()?);
        let pages = self.directory.join("pages");
        for directory in [&pages, &self.edge("")] {
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        self.write_pages(&pages)?;
        self.start_database(lab, &programs)?;
        for node in lab.topology().nodes() {
            start_servers(lab, node, &pages, &programs)
                .with_context(|| format!("while starting the web server of {}", node.name))?;
        }
        self.start_balancers(lab, &programs)?;
        start_fabric(lab, &fabricd)?;
        self.wait(lab)
    }

    fn write_pages(&self, pages: &Path) -> Result<()> {
        write(&self.directory.join("shop.sql"), include_str!("web/shop.sql"))?;
        write(&pages.join("page.php"), include_str!("web/page.php"))?;
        for rank in 1..=FILES {
            // From 1 to 16 KiB; which is long has nothing to do with which is popular.
            let length = 1_024 * (1 + rank * 7 % 16);
            write(
                &pages.join(format!("{rank}.html")),
                &"keeptime ".repeat(length / 9 + 1)[..length],
            )?;
        }
        Ok(())
    }

    fn start_database(&self, lab: &Lab, programs: &Programs) -> Result<()> {
        let own = self.database_directory();
        for directory in [&own, &own.join("data"), &own.join("files")] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let at = |option: &str, path: PathBuf| format!("--{option}={}", path.display());
        // It knows no users and is root: whoever reaches it may do what it may. So its socket is where root alone
        // comes, its port on the lab's network alone, and of this machine's files it reads and writes, for whoever is
        // there, those of one empty directory.
        let words = [
            "--no-defaults".into(),
            "--user=root".into(),
            "--skip-grant-tables".into(),
            at("secure-file-priv", own.join("files")),
            at("datadir", own.join("data")),
            at("init-file", self.directory.join("shop.sql")),
            at("socket", self.database()),
            at("pid-file", own.join("pid")),
            format!("--bind-address={}", lab.front_end()),
            format!("--port={DATABASE_PORT}"),
            "--innodb-buffer-pool-size=16M".into(),
            "--innodb-log-file-size=4M".into(),
            "--max-connections=500".into(),
        ];
        let exec = exec(FRONT_END, &programs.mariadb, words);
        daemon(lab, exec, &self.directory.join("database.log"))
    }

    fn start_balancers(&self, lab: &Lab, programs: &Programs) -> Result<()> {
        let (edge, nodes) = (self.edge(""), lab.topology().nodes());
        let texts = [
            ("haproxy.cfg", texts::haproxy(&edge, &self.sites, nodes)),
            ("nginx.conf", texts::nginx(&edge, &self.sites)),
            ("apache.conf", texts::apache(&edge, &self.sites, nodes)),
        ];
        for (file, text) in texts {
            write(&self.edge(file), &text)?;
        }
        let server = |node: &Node| {
            Some(Server { name: node.name.clone(), address: (node.address?, HTTP_PORT).into() })
        };
        let servers: Vec<_> = nodes.iter().filter_map(server).collect();
        for site in &self.sites {
            Nginx::new(&self.edge("nginx.conf"), site.name.as_str(), servers.clone())?.prepare()?;
        }
        let path = |file: &str| self.edge(file).display().to_string();
        let start = |program: &Path, words: Vec<String>, log: &str| {
            daemon(lab, exec(FRONT_END, program, words), &self.edge(log))
        };
        start(
            &programs.haproxy,
            vec!["-db".into(), "-f".into(), path("haproxy.cfg")],
            "haproxy.out",
        )?;
        start(&programs.nginx, vec!["-c".into(), path("nginx.conf")], "nginx.out")?;
        let words = ["-d", &path(""), "-f", &path("apache.conf"), "-DFOREGROUND"];
        start(&programs.apache, words.map(String::from).into(), "apache.out")
    }

    /// Until everything answers.
    fn wait(&self, lab: &Lab) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        let until = |what: &str, log: &Path, is_there: &dyn Fn() -> bool| -> Result<()> {
            while !is_there() {
                if Instant::now() > deadline {
                    let log = fs::read_to_string(log).unwrap_or_default();
                    let last: Vec<_> = log.lines().rev().take(5).collect();
                    bail!("{what} does not answer; its last words: {}", last.join(" / "));
                }
                sleep(Duration::from_millis(10));
            }
            Ok(())
        };
        let opens = |socket: PathBuf| move || UnixStream::connect(&socket).is_ok();
        until("the database", &self.directory.join("database.log"), &opens(self.database()))?;
        for node in lab.topology().nodes() {
            let own = lab.node_directory(&node.name);
            let what = |what: &str| format!("{what} of {}", node.name);
            until(&what("PHP"), &own.join("php.out"), &opens(own.join("php.sock")))?;
            until(&what("nginx"), &own.join("nginx.out"), &opens(own.join("http.sock")))?;
        }
        until("HAProxy", &self.edge("haproxy.out"), &opens(self.socket()))?;
        let network = lab.network(FRONT_END)?;
        for site in &self.sites {
            for (what, log, address) in
                [("nginx", "nginx.out", site.nginx), ("Apache", "apache.out", site.apache)]
            {
                let opens =
                    || network.run(move || TcpStream::connect(address).is_ok()).is_ok_and(|ok| ok);
                until(what, &self.edge(log), &opens)?;
            }
        }
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        self.edge("haproxy.sock")
    }

    /// Where the balancers' files are.
    fn edge(&self, file: &str) -> PathBuf {
        self.directory.join("edge").join(file)
    }
}

/// Where a lab's web servers have their files.
fn directory(lab: &Path) -> PathBuf {
    lab.join("web")
}

/// What the fabric of a lab with web servers is called, which tells its broker how busy nodes are.
pub fn fabric(lab: &Lab) -> String {
    format!("keeptime-{}", lab.name())
}

fn start_servers(lab: &Lab, node: &Node, pages: &Path, programs: &Programs) -> Result<()> {
    let own = lab.node_directory(&node.name);
    let (php, nginx) = (own.join("php.conf"), own.join("nginx.conf"));
    write(&php, &texts::php(&own))?;
    write(&nginx, &texts::server(&own, pages, lab.front_end()))?;
    let name = node.name.as_str();
    let words = ["-R", "-F", "-y", &php.display().to_string()].map(String::from);
    let exec_php = exec(name, &programs.php, words).of_service(PHP.parse()?);
    daemon(lab, exec_php, &own.join("php.out"))?;
    let words = ["-c", &nginx.display().to_string()].map(String::from);
    let exec_nginx = exec(name, &programs.nginx, words).of_service(NGINX.parse()?);
    daemon(lab, exec_nginx, &own.join("nginx.out"))
}

/// The fabric's daemon on the front end and on every node: how busy a node is, is read from it.
fn start_fabric(lab: &Lab, program: &Path) -> Result<()> {
    let key = directory(lab.directory()).join("fabric.key");
    let made = Command::new(program).arg("--make-key").arg(&key).status();
    let made = made.with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(made.success(), "{} --make-key has failed", program.display());
    let at = |address: Ipv4Addr| format!("{address}:{FABRIC_PORT}");
    let words = |node: &str, address: Ipv4Addr| {
        let key = key.display().to_string();
        ["--node", node, "--address", &at(address), "--name", &fabric(lab), "--key", &key]
            .map(String::from)
            .to_vec()
    };
    let front_end = lab.front_end();
    let mut own = words(FRONT_END, front_end);
    own.push("--no-load".into());
    let log = directory(lab.directory()).join("fabricd.out");
    daemon(lab, exec(FRONT_END, program, own), &log)?;
    for node in lab.topology().nodes() {
        let Some(address) = node.address else { continue };
        let mut own = words(node.name.as_str(), address);
        own.extend(["--member".into(), at(front_end)]);
        own.extend(["--answer-on".into(), lab.device().into()]);
        if let Some(group) = lab.group_path(&node.name) {
            own.extend(["--cgroup".into(), group.display().to_string()]);
            own.extend(["--cpu".into(), node.cpu.to_string()]);
        }
        let log = lab.node_directory(&node.name).join("fabricd.out");
        daemon(lab, exec(node.name.as_str(), program, own), &log)?;
    }
    Ok(())
}

fn exec(node: &str, program: &Path, words: impl IntoIterator<Item = String>) -> Exec {
    let words = [program.into()].into_iter().chain(words.into_iter().map(OsString::from));
    Exec::new(node, words)
}

/// Starts a program that goes on.
fn daemon(lab: &Lab, exec: Exec, log: &Path) -> Result<()> {
    let log = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let null = File::open("/dev/null")?;
    let stdio = [Some(null.into()), Some(log.try_clone()?.into()), Some(log.into())];
    Ok(lab.spawn_daemon(exec.with_stdio(stdio))?)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// What is started, found before anything is.
struct Programs {
    mariadb: PathBuf,
    php: PathBuf,
    nginx: PathBuf,
    haproxy: PathBuf,
    apache: PathBuf,
}

impl Programs {
    fn find() -> Result<Self> {
        Ok(Self {
            mariadb: program("mariadbd")?,
            // Its file is called by its version.
            php: program("php-fpm")?,
            nginx: program("nginx")?,
            haproxy: program("haproxy")?,
            apache: program("apache2")?,
        })
    }
}

/// The fabric's daemon, which is installed beside this program.
fn fabricd() -> Result<PathBuf> {
    let path = own_path()?.with_file_name("keeptime-fabricd");
    ensure!(path.exists(), "no {}: build and install the whole project", path.display());
    Ok(path)
}

/// A program whose name is `name`, or that and a version; the last of several.
fn program(name: &str) -> Result<PathBuf> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let is_it = |path: &PathBuf| {
        let rest = path.file_name().and_then(|file| file.to_str()?.strip_prefix(name));
        rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
            && path.is_file()
    };
    let files = |directory: &str| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(is_it).max()
    };
    path.split(':').find_map(files).with_context(|| format!("no {name}; scripts/setup installs it"))
}
