module leasehold.test/fences/migrate

go 1.26.0

require github.com/golang-migrate/migrate/v4 v4.20.1

require (
	github.com/go-sql-driver/mysql v1.5.0 // indirect
	github.com/lib/pq v1.10.9 // indirect
	github.com/mattn/go-sqlite3 v1.14.22 // indirect
)
