// Command migrate runs the migrations of a directory by golang-migrate, as its own command of that name does:
// migrate <directory> <database URL> up|down
package main

import (
	"log"
	"os"

	"github.com/golang-migrate/migrate/v4"
	_ "github.com/golang-migrate/migrate/v4/database/mysql"
	_ "github.com/golang-migrate/migrate/v4/database/postgres"
	_ "github.com/golang-migrate/migrate/v4/database/sqlite3"
	_ "github.com/golang-migrate/migrate/v4/source/file"
)

func main() {
	log.SetFlags(0)
	migrations, err := migrate.New("file://"+os.Args[1], os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	run := migrations.Up
	if os.Args[3] == "down" {
		run = migrations.Down
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
