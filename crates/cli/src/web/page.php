<?php
// The dynamic page of a lab's web servers: looks an item up, computes, and stores an order if there is one.
mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT);
$shop = new mysqli('p:' . $_SERVER['DATABASE_ADDRESS'], 'root', '', 'shop', (int) $_SERVER['DATABASE_PORT']);
if (isset($_GET['orders'])) {
    // How many have been stored, for whoever compares that with what was answered.
    exit($shop->query('SELECT COUNT(*) FROM orders')->fetch_row()[0]);
}
$item = random_int(1, 1000);
$row = $shop->query("SELECT name, stock FROM items WHERE id = $item")->fetch_assoc();
$digest = $row['name'];
$rounds = min((int) ($_GET['work'] ?? 2000), 1000000);
for ($round = 0; $round < $rounds; $round++) {
    $digest = hash('sha256', $digest);
}
$node = $shop->real_escape_string(gethostname());
if ($_SERVER['REQUEST_METHOD'] === 'POST') {
    $shop->query("INSERT INTO orders (item, node) VALUES ($item, '$node')");
}
header('Content-Type: text/html');
echo "<h1>{$row['name']}</h1><p>{$row['stock']} in stock, shown by $node, $digest</p>\n";
